"""Measures the operations of one benchmark once, in turn with another process; `bench/compare.py` starts both.

A line of its input lets it run. It answers with an empty line when it waits for its next turn, and with the report at
the end. The operations use the public API of `pagetier` wherever they can, so that they run with older commits too.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Protocol

from comparison.recorder import Recorder


class Operations(Protocol):
    """A module of `comparison.operations`."""

    def measure(self, recorder: Recorder) -> None:
        """Measures all operations."""


def await_turn() -> None:
    """Says that this process waits, and waits for its turn."""
    print(flush=True)
    _read_turn()


def _read_turn() -> None:
    if not sys.stdin.readline():
        raise SystemExit("the other side has failed")


def main(bench: str) -> None:
    _read_turn()
    operations: Operations = importlib.import_module(f"comparison.operations.{bench}")
    recorder = Recorder(await_turn)
    operations.measure(recorder)
    print(json.dumps({"figures": recorder.figures, "files": sorted(recorder.files)}))


if __name__ == "__main__":
    main(sys.argv[1])
