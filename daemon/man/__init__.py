"""Generates the manual pages and docs/configuration.md from the commands, the settings and the exit codes.

`python -m pagetier.daemon.man docs` writes them; a test compares them with the files in the repository.
"""
