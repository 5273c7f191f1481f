"""Runs `python -m segment_corruption SEED LIVES EACH`: LIVES daemons, each over segments with EACH injuries.

Prints a line of JSON for each (a Trial). The exit code is always 0; the reader of the lines judges them.
"""

from __future__ import annotations

import random
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from segment_corruption import engine
from segment_corruption.corruptions import Image, Injury, injure
from segment_corruption.engine import Seen
from segment_corruption.lifecycles import Daemon, LateError, asked

_KINDS: Final = ("index", "locks", "arena")


class Trial(msgspec.Struct):
    """One life of a daemon.

    Attributes:
        code: The exit code if the daemon ended by itself; None if it served.
        late: The process that hung, "" if none did.
    """

    injuries: list[Injury]
    seen: Seen
    code: int | None = None
    late: str = ""
    log: str = ""


def image_of(name: str) -> Image:
    """Returns the bytes of the current segments."""
    return {kind: bytearray(_file(name, kind).read_bytes()) for kind in _KINDS}


def put(name: str, image: Image) -> None:
    """Replaces the segments by these bytes."""
    for kind, data in image.items():
        _file(name, kind).write_bytes(data)


def _file(name: str, kind: str) -> Path:
    return Path("/dev/shm") / f"{name}.{kind}"


def prepare(name: str, folder: Path) -> tuple[Image, Image]:
    """Returns segments after a crash, and an older version, with evictions and reused frames in between."""
    daemon = Daemon(name, folder, 0)
    assert daemon.ready(), daemon.log
    asked(lambda: engine.fill(daemon.socket, range(engine.HALF)))
    older = image_of(name)
    asked(lambda: engine.fill(daemon.socket, range(engine.HALF, engine.PROMPTS)))
    daemon.end()
    return image_of(name), older


def tried(name: str, folder: Path, number: int, injuries: list[Injury]) -> Trial:
    """Runs a daemon over the current segments, and returns what an engine observes."""
    trial = Trial(injuries, Seen())
    daemon = Daemon(name, folder, number)
    try:
        if daemon.ready():
            trial.seen = msgspec.json.decode(asked(lambda: engine.match_all(daemon.socket)), type=Seen)
    except (LateError, msgspec.DecodeError) as error:
        trial.late = str(error)
    trial.code = daemon.code()
    daemon.end()
    trial.log = daemon.log
    return trial


def main() -> None:
    """Prints one line for each life, the first over segments without damage."""
    seed, lives, each = map(int, sys.argv[1:])
    chance, name = random.Random(seed), f"pagetier-test-{secrets.token_hex(6)}"
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        try:
            whole, older = prepare(name, Path(folder))
            for life in range(lives):
                image = {kind: bytearray(data) for kind, data in whole.items()}
                injuries = [injure(image, older, chance) for _ in range(each if life else 0)]
                put(name, image)
                _say(tried(name, Path(folder), life + 1, injuries))
        finally:
            for kind in _KINDS:
                _file(name, kind).unlink(missing_ok=True)


def _say(trial: Trial) -> None:
    sys.stdout.write(msgspec.json.encode(trial).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
