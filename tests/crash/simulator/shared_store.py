"""The stores that hosts share in the scenes with a fleet: they are damaged, die, stop and come back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from changing_folder import paths_in
from simulator.leftovers import prefix_of_this_process
from store_servers import ACCESS_KEY, SECRET_KEY, S3Server

_LISTED_S: Final = 1.0
_NEWEST: Final = 100  # objects, of which most are damaged
_DAMAGED: Final = 4096  # bytes
_AWAY_S: Final = 1.0
_FIRST_OBJECTS: Final = """
import sys
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import outgoings
fleet = open_fleet(FleetOptions(url=sys.argv[1], prefix="allocated", timeout_s=30.0, buffers=1 << 20))
fleet.write([], outgoings(range(20), 1000))
"""
_STOPPED: Final = 0.95  # of the outages of a server: a killed one needs 20 s to serve again


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class SharedStore(ABC):
    """A store of objects in files. end() removes everything.

    Attributes:
        url: The URL of the fleet.
        outage: How a death is reported.
        damage_s: The mean interval between damages, in seconds.
    """

    url: str
    outage: str
    damage_s = 0.05

    def __init__(self, rng: random.Random) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=prefix_of_this_process())
        self.folder = Path(self._folder.name)
        self._rng = rng
        self._files: list[Path] = []
        self._listed_at = 0.0
        self.returns_at = 0.0

    @abstractmethod
    def take_away(self) -> None:
        """Lets the store die."""

    @abstractmethod
    def bring_back(self) -> None:
        """Lets it live again, and returns at once."""

    @abstractmethod
    def objects(self) -> list[Path]:
        """Returns the files in which objects are."""

    def fail(self) -> bool:
        """Lets the store die for a while. Returns whether it lived."""
        if self.returns_at:
            return False
        self.returns_at = time.monotonic() + self._rng.uniform(0, _AWAY_S)
        self.take_away()
        return True

    def maintain(self, now: float) -> None:
        """Brings the store back when it is time."""
        if self.returns_at and self.returns_at <= now:
            self.returns_at = 0.0
            self.bring_back()

    def damage(self) -> bool:
        """Changes an object in one of several ways. Returns whether there was one."""
        if time.monotonic() > self._listed_at + _LISTED_S:
            self._listed_at, self._files = time.monotonic(), sorted(self.objects(), key=_age)
        if not self._files:
            return False
        with suppress(FileNotFoundError):
            self._rng.choice(self.damages())(self._recent())
        return True

    def _recent(self) -> Path:
        """Returns a file: mostly one of the newest, which hosts will read."""
        return self._files[min(len(self._files) - 1, int(self._rng.expovariate(1 / _NEWEST)))]

    def damages(self) -> list[Callable[[Path], None]]:
        """Returns the ways to damage a file."""
        return [self._overwrite]

    def end(self) -> None:
        """Ends the store."""
        self._folder.cleanup()

    def _overwrite(self, path: Path) -> None:
        with path.open("r+b") as file:
            length = os.fstat(file.fileno()).st_size
            file.seek(self._rng.randrange(max(1, length)))
            file.write(self._rng.randbytes(min(_DAMAGED, length)))


class SharedFolder(SharedStore):
    """A folder in another one, which is replaced by an empty one as a mount point whose file system is not mounted."""

    outage = "mount of the folder"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._mounted, self._away = self.folder / "mount", self.folder / "away"
        (self._mounted / "pages").mkdir(parents=True)
        self.url = f"file://{self._mounted}/pages"

    def take_away(self) -> None:
        """Leaves an empty folder."""
        self._mounted.rename(self._away)
        self._mounted.mkdir()

    def bring_back(self) -> None:
        """Replaces the empty folder. Raises RuntimeError if a worker has written to it."""
        try:
            self._away.rename(self._mounted)
        except OSError as error:
            left = [str(path) for path in self._mounted.rglob("*")]
            raise RuntimeError(f"something was written below the mount point: {left}") from error

    def objects(self) -> list[Path]:
        """Returns the objects."""
        return [path for path in self._mounted.glob("pages/pagetier/*/*") if path.is_file()]

    def damages(self) -> list[Callable[[Path], None]]:
        """Adds damage that only files of one object allow."""
        return [*super().damages(), self._truncate, self._replace, Path.unlink]

    def _truncate(self, path: Path) -> None:
        os.truncate(path, self._rng.randrange(max(1, path.stat().st_size)))

    def _replace(self, path: Path) -> None:
        """Puts another object under its name."""
        data = self._rng.choice(self._files).read_bytes()
        with path.open("r+b") as file:
            file.write(data)
            file.truncate()


class SharedS3(SharedStore):
    """SeaweedFS, which is stopped for a while, or killed and started again."""

    outage = "S3 server"
    damage_s = 1.0  # each file has many objects, and an index of them

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        self._server = S3Server(self.folder)
        self.url = self._server.url
        self._allocate()

    def _allocate(self) -> None:
        """Writes some objects: the server allocates its files at the first writes, which takes seconds.

        Another process does so, because this one forks and must have one thread.
        """
        subprocess.run([sys.executable, "-c", _FIRST_OBJECTS, self.url], check=True)

    def take_away(self) -> None:
        """Stops the server, or now and then kills it: another one needs seconds to start."""
        if self._rng.random() < _STOPPED:
            self._server.process.send(signal.SIGSTOP)
        else:
            self._server.process.kill()

    def bring_back(self) -> None:
        """Continues the server, or starts another one."""
        if self._server.process.lives():
            self._server.process.send(signal.SIGCONT)
        else:
            self._server.launch()

    def objects(self) -> list[Path]:
        """Returns the volumes, in each of which are many objects."""
        return [path for path in paths_in(self.folder) if path.suffix == ".dat" and _size(path)]

    def end(self) -> None:
        """Kills the server."""
        self._server.process.kill()
        super().end()


def shared_store(kind: str, rng: random.Random) -> SharedStore:
    """Returns a new store of this kind: "folder" or "s3"."""
    return SharedS3(rng) if kind == "s3" else SharedFolder(rng)
