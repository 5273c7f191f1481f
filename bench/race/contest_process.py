"""`python -m race.contest_process NAME` runs one contest and prints its results, a JSON object a line."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

import msgspec

from race.results import Form

CONTESTS = {
    "trust": "race.contests.trust.contest",
    "lookup": "race.contests.lookup",
    "copies": "race.contests.copies",
    "disk": "race.contests.disk",
    "serving": "race.contests.serving",
    "sharing": "race.contests.sharing",
    "router": "race.contests.router",
}
"""Each has `measure(form, folder)`, which yields lines."""


class EndedError(BaseException):
    """The race ends this contest. It is no Exception and no SystemExit, which contests take as a system's failure."""


def _end(number: int, frame: FrameType | None) -> None:
    raise EndedError(f"ended by signal {number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contest", choices=CONTESTS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    form = Form.QUICK if arguments.quick else Form.WHOLE
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    signal.signal(signal.SIGTERM, _end)  # leaving the contexts removes what was made
    out, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory(prefix="pagetier-race-", ignore_cleanup_errors=True) as folder:
        for line in importlib.import_module(CONTESTS[arguments.contest]).measure(form, Path(folder)):
            out.write(msgspec.json.encode(line).decode() + "\n")
            out.flush()


if __name__ == "__main__":
    main()
