"""Measures the open descriptors and the private memory of the daemon, now and at most."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Self

import msgspec


class Cost(msgspec.Struct, frozen=True):
    """The resources of a process; `anon` is RssAnon in bytes."""

    descriptors: int
    anon: int


def cost_of(pid: int) -> Cost:
    """Returns the resources of a running process."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return Cost(len(list(Path(f"/proc/{pid}/fd").iterdir())), int(found[1]) << 10)


class Sampled:
    """Samples the resources within a context; afterwards `most` holds the maximum of each."""

    def __init__(self, pid: int, every_s: float = 0.05) -> None:
        self.first = self.most = cost_of(pid)
        self._pid = pid
        self._every_s = every_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")

    def _run(self) -> None:
        while not self._ends.wait(self._every_s):
            now = cost_of(self._pid)
            self.most = Cost(max(self.most.descriptors, now.descriptors), max(self.most.anon, now.anon))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
