"""Remembers flushed namespaces until their pages have left the disk, so that no later worker brings them back.

A flush removes pages from the index first: from then on no match finds them. The index lists their keys as drops, the
device sends these to its worker, and the flush is answered when the worker has reported them as dropped.

Between the first and the last step the files still have the pages. If the worker ends there, the next one reports them
in its inventory, and they would be found again. So the flush is remembered until a report confirms it: the inventory is
loaded without its pages (`Inventory.add`), and the first command to the new worker drops them (`again`). The same
holds for a folder that a reload removes, because a later one may add it again. If the daemon ends as well, the pages
can be found again; the request was answered with that reason, unless the folder had been removed.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from pagetier.daemon.common.namespaces import means

DROP_TIMEOUT_S: Final = 10.0
_MOST_PAGES: Final = 1 << 20
_ALL: Final = b""  # stands for all namespaces; digests are longer
_NO_COMMAND: Final = 0  # commands are numbered from 1
_LATER: Final = "flushed pages leave the disk when it is back, if this daemon still runs then"
AWAY: Final = f"the disk tier is not open: {_LATER}"
_HANGS: Final = f"the disk has not answered for {DROP_TIMEOUT_S:.0f} s: {_LATER}"


class Answers:
    """Collects the answers of all devices to one flush, then passes them on together."""

    def __init__(self, devices: int, then: Callable[[str], None]) -> None:
        self._left, self._then = devices, then
        self._several = devices > 1
        self._reasons: list[str] = []
        if not devices:
            then("")

    def of(self, folder: Path) -> Callable[[str], None]:
        """Returns the function that takes the answer of a device.

        The answer is "" if the pages have left the device, else the reason why they may still be there.
        """
        return functools.partial(self._add, f"{folder}: " if self._several else "")

    def _add(self, place: str, reason: str) -> None:
        self._left -= 1
        self._reasons += [place + reason] if reason else []
        if not self._left:
            self._then("; ".join(self._reasons))


class PendingFlushes:
    """Flushed namespaces whose pages the disk has not dropped yet, and the requests that wait for that.

    Namespaces are known by their digests; another instance remembers single pages by their keys. Above `most` of them,
    all count as flushed. Each `then` is called once: with "", or with the reason why flushed pages may still be on
    disk. On the loop's thread only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int = 4096) -> None:
        self._loop = loop
        self._most = most
        self._commands: dict[bytes, int] = {}
        self._waiting: dict[int, list[Callable[[str], None]]] = {}
        self._wanted: set[str] = set()

    def keep(self, digests: Collection[bytes] | None, wanted: str = "") -> None:
        """Remembers a flush that no worker can carry out now.

        Args:
            digests: The namespaces; None for all of them.
            wanted: What selects the namespaces, "" if the digests name all that are meant: the device may have others
                that the index does not know yet.
        """
        self._note(digests, _NO_COMMAND)
        self._wanted |= {wanted} - {""}
        if len(self._wanted) > self._most:
            self._note(None, _NO_COMMAND)

    def wait(self, digests: Collection[bytes] | None, command: int, then: Callable[[str], None]) -> None:
        """Remembers a flush that the worker carries out by `command` or an earlier command.

        `digests` is None for all namespaces.
        """
        self._note(digests, command)
        self._waiting.setdefault(command, []).append(then)
        self._loop.call_later(DROP_TIMEOUT_S, self._answer, command, _HANGS)

    def done(self, command: int, reason: str) -> None:
        """Handles a completed command.

        Args:
            command: The number of the command.
            reason: Why pages of it are still on disk, or "". The next worker drops these.
        """
        if reason:
            self._fail(command, f"some flushed pages are still on disk: {reason}")
        else:
            self._commands = {digest: number for digest, number in self._commands.items() if number != command}
            self._answer(command, "")

    def _fail(self, command: int, why: str) -> None:
        """Remembers all that waits for this command or a later one: the keys of a flush may fill several commands.

        The command may have dropped some of its pages. Which ones is unknown.
        """
        failed = [digest for digest, number in self._commands.items() if number >= command]
        self._commands |= dict.fromkeys(failed, _NO_COMMAND)
        for number in [number for number in self._waiting if number >= command]:
            self._answer(number, why)

    def lost(self) -> None:
        """Answers all waiting requests: the worker is gone, and its commands with it."""
        for command in list(self._waiting):
            self._answer(command, AWAY)

    def again(self, command: int) -> None:
        """Assigns all remaining flushes to `command` of the new worker; 0 if its disk has none of their pages."""
        self._commands = dict.fromkeys(self._commands, command) if command else {}
        self._wanted = set()  # its inventory has named all namespaces that it has

    def among(self, digest: bytes, label: str) -> bool:
        """Returns whether the pages of the namespace with this digest and this label are flushed."""
        if digest not in self._commands and any(means(wanted, label, digest) for wanted in self._wanted):
            self._note([digest], _NO_COMMAND)
        return digest in self._commands or _ALL in self._commands

    def digests(self) -> Collection[bytes] | None:
        """Returns the digests of all that is flushed; None if everything is."""
        return None if _ALL in self._commands else self._commands.keys()

    def _note(self, digests: Collection[bytes] | None, command: int) -> None:
        self._commands |= dict.fromkeys((_ALL,) if digests is None else digests, command)
        if len(self._commands) > self._most:
            self._commands = {_ALL: command}

    def _answer(self, command: int, why: str) -> None:
        for then in self._waiting.pop(command, ()):
            then(why)


class DeviceFlushes:
    """The flushed namespaces and the forgotten pages that the folder of a device has not dropped yet.

    Attributes:
        namespaces: The namespaces, by their digests.
        pages: The pages, by their keys.
        numbers: Numbers the commands to all workers of the folder: a late report of a worker that a reload has removed
            must not complete a command to its successor.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.namespaces = PendingFlushes(loop)
        self.pages = PendingFlushes(loop, _MOST_PAGES)
        self.numbers = itertools.count(1)

    def done(self, command: int, reason: str) -> None:
        """Handles a completed command."""
        self.namespaces.done(command, reason)
        self.pages.done(command, reason)

    def lost(self) -> None:
        """Answers all waiting requests: the worker is gone."""
        self.namespaces.lost()
        self.pages.lost()

    def again(self, command: int) -> None:
        """Assigns all that remains to `command` of the new worker; 0 if its disk has none of these pages."""
        self.namespaces.again(command)
        self.pages.again(command)


FlushedKind = Callable[[DeviceFlushes], PendingFlushes]  # of namespaces or of pages


class FolderFlushes:
    """What was flushed, by the folder of a device, also after a reload has removed the device: its files stay."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._folders: dict[Path, DeviceFlushes] = {}

    def of(self, folder: Path) -> DeviceFlushes:
        """Returns what the folder of a device may still have."""
        return self._folders.setdefault(folder, DeviceFlushes(self._loop))

    def without(self, folders: Iterable[Path]) -> list[DeviceFlushes]:
        """Returns what all but these folders may still have."""
        return [self._folders[folder] for folder in self._folders.keys() - set(folders)]
