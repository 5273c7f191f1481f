"""`python -m pagetier` runs the command `pagetier`."""

from __future__ import annotations

from pagetier.daemon.cli import main

main(prog_name="python -m pagetier")
