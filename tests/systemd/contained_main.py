"""A client in a container: python contained_main.py FIRST COUNT stores pages, prints what it found, and waits."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from keyed_pages import found, prompt, store
from pagetier.client import Client


def main(first: int, count: int) -> None:
    """Loads the pages before `first`, which another process stored, then stores its own."""
    keys = prompt(0, first + count)
    with Client(name="contained") as client:
        attached = client.wait_attached(10)
        loaded = found(client, keys[:first]) if first else 0
        stored = store(client, keys).stored
        shm = sorted(os.listdir("/dev/shm"))  # noqa: PTH208  the folder may be missing
        seen = [name.name for name in Path("/proc").iterdir() if name.name.isdecimal()]
        report = {"attached": attached, "found": loaded, "stored": stored, "shm": shm, "seen": len(seen)}
        report |= {"pid": os.getpid(), "uid": os.geteuid()}
        print(json.dumps(report), flush=True)  # noqa: T201  the test reads it
        sys.stdin.read()


main(*map(int, sys.argv[1:]))
