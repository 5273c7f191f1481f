"""A daemon with a disk, several clients, and a model of where each page must be."""

from __future__ import annotations

from pathlib import Path

import msgspec

from eventually import PATIENCE_S, eventually
from keyed_pages import PAGE, prompt
from pagetier.client import Client, Keys, Match, Outcome
from pagetier.client.reservation import Reservation
from running_daemon import RunningDaemon

FRAMES = 64
PROMPTS, PAGES = 4, 6


class Held(msgspec.Struct, eq=False):
    """The pages that a client has pinned."""

    client: Client
    match: Match
    keys: Keys


class Room(msgspec.Struct, eq=False):
    """A reservation of a client that is not published."""

    client: Client
    reservation: Reservation
    keys: Keys
    granted: list[int]


class ClientWorld:
    """A daemon, its clients and the expected state.

    `memory` and `disk` contain the keys of the pages there. Memory has room for all pages, so none is evicted.
    """

    def __init__(self, folder: Path) -> None:
        flags = ("--disk-path", str(folder), "--disk-size", "64MiB", "--set", "disk.write=through")
        self.daemon = RunningDaemon(str(FRAMES * PAGE), str(PAGE), *flags).start()
        self.clients: list[Client] = []
        self.begin()

    def begin(self) -> None:
        """Starts an example with three clients and no pages."""
        self.memory: set[bytes] = set()
        self.disk: set[bytes] = set()
        self.held: list[Held] = []
        self.rooms: list[Room] = []
        while len(self.clients) < 3:
            self.clients.append(self.daemon.client())
        self.wait_ready()

    def close(self) -> None:
        """Closes the clients and drops all pages. The daemon stays for the next example."""
        self.let_go_of_all()
        for client in self.clients:
            client.close()
        self.clients.clear()
        assert eventually(lambda: len(self.daemon.slots()) == 1), "a slot other than the disk worker's is in use"
        self.daemon.until_written()
        self.daemon.flush()
        assert self.daemon.findings() == []
        header = self.daemon.header()
        assert (header.used_frames, header.disk_used_frames, header.open_entries) == (0, 0, 0)

    def end(self) -> None:
        """Stops the daemon."""
        self.daemon.__exit__(None, None, None)

    def wait_ready(self) -> None:
        """Waits until the daemon serves, the inventory of the disk is loaded, and only the clients are attached."""
        self.daemon.wait_disk_open()
        assert all(client.wait_attached(PATIENCE_S) for client in self.clients)
        assert eventually(lambda: len(self.daemon.slots()) == len(self.clients) + 1), (
            "not all clients are attached, or another process is"
        )

    def let_go_of_all(self) -> None:
        """Releases the pins and reservations of all clients."""
        for held in self.held:
            held.match.release()
        for room in self.rooms:
            room.reservation.abandon()
        self.held.clear()
        self.rooms.clear()

    # ---- what must be

    @property
    def pending(self) -> set[bytes]:
        """The pages that a client is writing."""
        return {room.keys[page] for room in self.rooms for page in room.granted}

    @property
    def pinned(self) -> set[bytes]:
        """The pages that a client has pinned."""
        return {key for held in self.held for key in held.keys}

    def pages_in_memory(self, keys: Keys) -> int:
        """Returns the number of pages of a prompt in memory, counted from its head."""
        return next((at for at, key in enumerate(keys) if key not in self.memory), len(keys))

    def pages_anywhere(self, keys: Keys) -> int:
        """Returns the number of pages of a prompt in memory, on disk or being read from disk, counted from its head."""
        there = self.memory | self.disk
        return next((at for at, key in enumerate(keys) if key not in there), len(keys))

    def expected(self, keys: Keys) -> list[Outcome]:
        """Returns the expected outcomes of a store of these pages."""
        pending = self.pending
        return [
            Outcome.PENDING if key in pending else Outcome.PRESENT if key in self.memory else Outcome.STORED
            for key in keys
        ]

    # ---- what others do

    def write_all(self) -> None:
        """Waits until all complete pages in memory are on disk, too."""
        assert eventually(lambda: self.daemon.header().open_entries == len(self.pending))
        if not self.rooms:
            self.daemon.until_written()
            self.disk |= self.memory


def keys_of(number: int, pages: int) -> Keys:
    """Returns the keys of the first pages of a prompt."""
    return prompt(number, PAGES)[:pages]
