"""Generates the manual pages, docs/configuration.md and docs/metrics.md from commands, settings, exit codes, metrics.

`python -m pagetier.daemon.man docs` writes them; a test compares them with the files in the repository.
"""
