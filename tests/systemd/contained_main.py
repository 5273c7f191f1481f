"""A client in a container: python contained_main.py FIRST COUNT stores pages, prints what it found, and waits."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from pagetier.client import Client
from word_pages import keys, page


def main(first: int, count: int) -> None:
    """Loads the pages before `first`, which another process stored, then stores its own."""
    wanted = [page(number) for number in range(first + count)]
    out = np.zeros((first + count, len(wanted[0])), np.uint8)
    with Client(name="contained") as client:
        attached = client.wait_attached(10)
        with client.match(keys(first)) as match:
            found = client.load(match, out[:first]) if first else 0
        same = all((out[number] == wanted[number]).all() for number in range(found))
        stored = client.store(keys(first + count), np.stack(wanted)).stored
        shm = sorted(os.listdir("/dev/shm"))  # noqa: PTH208  the folder may be missing
        seen = [name.name for name in Path("/proc").iterdir() if name.name.isdecimal()]
        report = {"attached": attached, "found": found, "same": same, "stored": stored, "shm": shm, "seen": len(seen)}
        report |= {"pid": os.getpid(), "uid": os.geteuid()}
        print(json.dumps(report), flush=True)  # noqa: T201  the test reads it
        sys.stdin.read()


main(*map(int, sys.argv[1:]))
