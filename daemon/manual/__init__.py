"""The manual pages, made of the commands, the settings and the exit codes: they say what the code says.

`python -m pagetier.daemon.manual docs/man` writes them; a test finds those in the repository to be these.
"""
