"""Runs daemons one after another over damaged segments, each beside an engine that reads all pages."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from eventually import PATIENCE_S, eventually
from injection.fork_client import ForkClient
from injection.forked_processes import ForkedDaemon
from pagetier.shm.daemon_link import LinkError
from pagetier.shm.exit_codes import Exit
from segment_corruption import engine
from segment_corruption.corruptions import Image, Injury, injure
from segment_corruption.engine import Seen

_KINDS: Final = ("index", "locks", "arena")
_FLAGS: Final = (
    *(
        "--set",
        "index.entries=256",
        "--constant",
        "index.namespaces=8",
        "--constant",
        "store.quarantine=0.05",
    ),
)


class Trial(msgspec.Struct, frozen=True):
    """One life of a daemon.

    Attributes:
        code: The exit code if the daemon ended by itself; None if it served.
        late: The process that hung or failed, "" if none did.
    """

    injuries: list[Injury]
    seen: Seen
    code: int | None = None
    late: str = ""
    log: str = ""

    def complaint(self) -> str:
        """Returns the broken promise, or ""."""
        if self.late or "Traceback" in self.log:
            return self.late or f"the daemon ended with code {self.code}"
        if self.code is not None:
            refused = self.code == Exit.UNFIT and "--fresh discards what is in them" in self.log
            return "" if refused else f"the daemon ended with code {self.code}"
        if self.seen.wrong or self.seen.findings:
            return "; ".join(self.seen.wrong + self.seen.findings)
        return "" if self.seen.attached and self.seen.stored else "the daemon does not serve"


class Lives:
    """The lives of daemons over the same segments. `folder` is the place for the results of engines."""

    def __init__(self, fork_client: ForkClient, folder: Path) -> None:
        self._daemon = ForkedDaemon(fork_client, "1MiB", "4KiB", *_FLAGS)
        self._fork_client = fork_client
        self._result = folder / "result"
        self._whole, self._older = self._prepared()

    def trials(self, seed: int, lives: int, each: int) -> Iterator[Trial]:
        """Yields this many lives, each over `each` injuries; the first one over segments without damage."""
        chance = random.Random(seed)
        for life in range(lives):
            image = {kind: bytearray(data) for kind, data in self._whole.items()}
            injuries = [injure(image, self._older, chance) for _ in range(each if life else 0)]
            for kind, data in image.items():
                self._file(kind).write_bytes(data)
            yield self._tried(injuries)

    def end(self) -> None:
        """Removes the segments."""
        for kind in _KINDS:
            self._file(kind).unlink(missing_ok=True)
        self._daemon.folder.cleanup()

    def _prepared(self) -> tuple[Image, Image]:
        """Returns segments after a crash, and an older version, with evictions and reused frames in between."""
        self._daemon.start()
        self._asked("fill", 0, engine.HALF)
        older = self._image()
        self._asked("fill", engine.HALF, engine.PROMPTS)
        self._daemon.kill()
        return self._image(), older

    def _tried(self, injuries: list[Injury]) -> Trial:
        """Runs a daemon over the current segments, and returns what an engine observes."""
        seen, late, begin = Seen(), "", len(self._daemon.log.read_text())
        process = self._daemon.launch()
        ready = eventually(lambda: "ready on" in self._log(begin) or process.poll() is not None)
        try:
            if process.poll() is None:
                seen = msgspec.json.decode(self._asked("match_all"), type=Seen)
                seen.findings = self._daemon.findings()
        except (subprocess.TimeoutExpired, OSError, LinkError) as error:
            late = f"an engine hangs or failed: {error}"
        code = process.poll()
        process.kill()
        process.wait(PATIENCE_S)
        return Trial(injuries, seen, code, late if ready else "the daemon did not become ready", self._log(begin))

    def _asked(self, work: str, *arguments: int) -> bytes:
        """Runs a function of the engine in a process and returns its result. Raises TimeoutExpired if it hangs."""
        self._result.unlink(missing_ok=True)
        words = (self._daemon.socket, self._result, *arguments)
        process = self._fork_client.spawn(work, words, self._daemon.log, module=engine.__name__)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
        return self._result.read_bytes()

    def _log(self, begin: int) -> str:
        return self._daemon.log.read_text()[begin:]

    def _image(self) -> Image:
        return {kind: bytearray(self._file(kind).read_bytes()) for kind in _KINDS}

    def _file(self, kind: str) -> Path:
        return Path("/dev/shm") / f"{self._daemon.name}.{kind}"


@contextmanager
def lives_in(folder: Path) -> Iterator[Lives]:
    """Yields lives of daemons of the normal build."""
    crash = Path(__file__).parents[1]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (crash, crash.parent / "harness")))}
    with ForkClient(folder / "log", environ) as fork_client:
        lives = Lives(fork_client, folder)
        try:
            yield lives
        finally:
            lives.end()
