"""A client in a container: python contained_main.py FIRST COUNT stores pages, prints what it found, and waits."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from eventually import eventually
from keyed_pages import found, prompt, store
from pagetier.client import Client


def main(first: int, count: int) -> None:
    """Loads and compares the pages before `first`, which another process stored, then stores its own."""
    said: list[str] = []

    def hear(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        return True

    logging.getLogger("pagetier.client").addFilter(hear)
    with Client(name="contained") as client:
        assert eventually(lambda: client.attached or any("cannot attach" in line for line in said))
        report = {"attached": client.attached, "pid": os.getpid(), "uid": os.geteuid()}
        report |= {"found": found(client, prompt(0, first)), "stored": store(client, prompt(0, first + count)).stored}
        shm = sorted(os.listdir("/dev/shm"))  # noqa: PTH208  the folder may be missing
        seen = [name.name for name in Path("/proc").iterdir() if name.name.isdecimal()]
        print(json.dumps({**report, "shm": shm, "seen": len(seen)}), flush=True)  # noqa: T201  the test reads it
        sys.stdin.read()


main(*map(int, sys.argv[1:]))
