"""Generates the manual pages, and the pages of docs on commands, settings and metrics, from the code.

`python -m pagetier.daemon.man docs` writes them; a test compares them with the files in the repository.
"""
