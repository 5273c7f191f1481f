"""An index in memory, and simulated processes on it whose copies, responses and clocks the test controls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np

from anonymous_segments import DAY_NS, Memory, attach
from fake_device import FakeDevice
from keyed_pages import assert_exact, page_of
from page_reservations import answer_rows, reserve
from pagetier.client import Keys, Namespace
from pagetier.client.adapters import AsyncCopier
from pagetier.client.arguments import MisuseLog
from pagetier.client.async_copy.stream_queue import StreamQueue
from pagetier.client.attachment import Attachment, LinkedSession
from pagetier.client.rpc import Requests
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.device import Direction
from pagetier.kernels.host.copy import gather, scatter
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.frames import Arena, frames_of
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.shm._core import KEY_BYTES, Pins, ReserveOutcome, Session
from pagetier.shm.client_socket import Sending, SentRequest
from pagetier.shm.daemon_link import Link
from pagetier.shm.geometry import Geometry
from pagetier.shm.page_rows import PAGE_REQUESTS
from pagetier.shm.protocol import Answer, Request, Reserve, Reserved

TOKENS, BLOCK, HEADS, WIDTH, LAYERS = 4, 2, 4, 47, 2
BLOCKS = 48
PAGE_BLOCKS = TOKENS // BLOCK
GEOMETRY = Geometry(frame_bytes=4096, frames=24, entries=20, spaces=2)
POISON = 0xEE

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class CopiedCache:
    """An engine's cache of two layers of K and V, and the layout of its pages, which have no gaps."""

    def __init__(self) -> None:
        shape = (LAYERS, 2, BLOCKS, BLOCK, HEADS, WIDTH)
        self.tensors = list(np.random.default_rng(1).integers(0, 2**16, shape, dtype=np.uint16))
        layout = engine_layouts.kv_first(self.tensors)
        self.paged = PagedCache(layout, PageLayout.of(layout, TOKENS))
        self.page_bytes = self.paged.page.nbytes

    def slots(self, blocks: list[int]) -> SlotMap:
        return slot_map(blocks, len(blocks) // PAGE_BLOCKS, TOKENS, BLOCK)

    def fill(self, blocks: list[int], pages: list[Bytes]) -> None:
        """Copies pages into blocks."""
        held = np.concatenate(pages)
        scatter(self.paged.loading(self.slots(blocks)), self._frames(held, len(pages)))

    def spill(self, blocks: list[int]) -> list[Bytes]:
        """Returns the pages in blocks."""
        count = len(blocks) // PAGE_BLOCKS
        held = np.zeros(count * self.page_bytes, np.uint8)
        gather(self.paged.storing(self.slots(blocks))[0], self._frames(held, count))
        return list(held.reshape(count, -1))

    def spoil(self, blocks: list[int]) -> None:
        """Overwrites blocks with other content."""
        for tensor in self.tensors:
            tensor[:, blocks] = POISON

    def layer(self, layer: int) -> slice:
        """Returns the bytes of a page that belong to a layer."""
        size = self.page_bytes // LAYERS
        return slice(layer * size, (layer + 1) * size)

    def _frames(self, held: Bytes, count: int) -> Any:
        arena = Arena(held.ctypes.data, held.nbytes, self.page_bytes, held)
        return frames_of(arena, np.arange(count).reshape(-1, 1))


SPACE = Namespace(model="test", dtype="uint16", page_tokens=TOKENS, layout=CopiedCache().paged.page.layout)
MOST_PAGES = 5


@cache
def keys_of(prompt: int, pages: int = MOST_PAGES) -> Keys:
    return SPACE.keys(range(prompt << 16, (prompt << 16) + TOKENS * pages))


@cache
def _contents_of(prompt: int, size: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.stack([page_of(key, size) for key in keys_of(prompt)])


class Wire:
    """A link whose other end is the test."""

    def __init__(self) -> None:
        self.sent: deque[Request] = deque()
        self.answers: list[Answer] = []

    def send(self, request: Request, timeout: float, owner: SentRequest) -> None:
        self.sent.append(request)
        owner.sending = Sending(0)  # nothing is left to send

    def deliver(self, seconds: float, call: Callable[[Answer], object]) -> bool:
        while self.answers:
            call(self.answers.pop(0))
        return True

    def expect_stray(self) -> None:
        """Does nothing: the test reads all responses."""

    def expect_no_stray(self) -> None:
        """Does nothing: the test reads all responses."""


class Process:
    """A simulated engine process: a session, a device, requests that the test answers, copiers that it advances."""

    def __init__(self, world: CopyingWorld, settings: CopySettings) -> None:
        self.world, self.settings = world, settings
        self.slot, self.session = world.attached()
        self.device = FakeDevice(world.sound)
        world.devices.append(self.device)
        self.cache = CopiedCache()
        self.wire = Wire()
        self.timeout, self.threads, self.misuse = 0.0, 1, MisuseLog()
        self.requests = Requests()
        self.lanes: list[StreamQueue] = []
        self.copier = self.new_copier()
        self.linked = LinkedSession(cast(Link, self.wire), self.session, {})

    def new_copier(self) -> AsyncCopier:
        return AsyncCopier(self, self.cache.paged, self.device, self.settings, self._take)

    @property
    def attachment(self) -> Attachment:
        """Returns the process itself, which has what reservations use."""
        return cast(Attachment, self)

    def answer(self, ttl_ns: int = DAY_NS) -> tuple[Keys, list[int]]:
        """Answers the oldest request.

        Returns:
            Its keys and the granted pages, whose frames are filled with other content.
        """
        request = self.wire.sent.popleft()
        assert isinstance(request, Reserve)
        keys = Keys(SPACE, b"".join(page.key for page in PAGE_REQUESTS.read(request.pages)))
        answers = self.world.reserve(self.slot, self.session, keys.data, self.cache.page_bytes, ttl_ns)
        rows = answer_rows(*answers)
        self.wire.answers.append(Reserved(request.number, rows))
        self.requests.pump(cast(Link, self.wire))
        return keys, [at for at, outcome in enumerate(answers[0]) if outcome == ReserveOutcome.GRANTED]

    def step(self) -> None:
        """Advances both queues of all copiers."""
        for lane in self.lanes:
            lane.step()

    def _take(self, lane: StreamQueue, name: str) -> None:
        lane.now = self.world.clock
        self.lanes.append(lane)


class CopyingWorld:
    """The daemon's side, and an observer that matches and checks all readable pages.

    Attributes:
        sound: Frames with a page whose store has reached its event.
        devices: The devices of processes that are alive or have just died.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.memory = Memory(GEOMETRY)
        self.owner = self.memory.adopted()
        self.sound: set[int] = set()
        self.devices: list[FakeDevice] = []
        self.tokens = 0
        self.space = self.owner.space(SPACE.digest, "test", TOKENS, 0, 0)
        _, self.watcher = self.attached()
        self.rival_slot, self.rival = self.attached()

    def clock(self) -> float:
        return self.now

    def attached(self) -> tuple[int, Session]:
        self.tokens += 1
        slot = attach(self.owner, self.tokens)
        return slot, self.memory.session(slot)

    def reserve(self, slot: int, session: Session, keys: bytes, size: int, ttl_ns: int) -> tuple[bytes, bytes, bytes]:
        """Grants pages, and asserts that no granted frame is used by a device."""
        sizes = np.full(len(keys) // KEY_BYTES, size, np.uint64)
        answers = reserve(self.owner, slot, self.space, 0, 1, ttl_ns, keys, sizes)
        granted = np.flatnonzero(np.frombuffer(answers[0], np.uint8) == ReserveOutcome.GRANTED)
        poison = np.full(size, POISON, np.uint8)
        for entry in np.frombuffer(answers[1], np.uint32)[granted].tolist():
            frames = frames_in(session, entry)
            assert not any(frames & device.frames_of(*Direction) for device in self.devices), (
                "a frame was granted while a device used it"
            )
            self.sound -= frames
            write(session, entry, poison)
        return answers

    def store_elsewhere(self, prompt: int, pages: int, size: int) -> None:
        """Stores pages at once, as another process."""
        keys = keys_of(prompt, pages)
        outcomes, entries, serials = self.reserve(self.rival_slot, self.rival, keys.data, size, DAY_NS)
        for at in np.flatnonzero(np.frombuffer(outcomes, np.uint8) == ReserveOutcome.GRANTED).tolist():
            entry, serial = entries[4 * at : 4 * at + 4], serials[8 * at : 8 * at + 8]
            number = int(np.frombuffer(entry, np.uint32)[0])
            write(self.rival, number, page_of(keys[at], size))
            self.sound |= frames_in(self.rival, number)
            assert self.rival.publish(entry, serial, 0) == b"\1"

    def readable(self, prompt: int, size: int) -> int:
        """Returns the number of readable pages of a prompt. Asserts that each has its content and reached its event."""
        keys = keys_of(prompt)
        with self.watcher.match(Pins, None, keys.data) as pins:
            pages = np.zeros((len(pins), size), np.uint8)
            where = pages.ctypes.data + size * np.arange(len(pins), dtype=np.uint64)
            assert self.watcher.copy_out(pins, 0, where, np.full(len(pins), size, np.uint64), 1) == len(pins)
            entries = np.frombuffer(pins.entries, np.uint32).tolist()
            assert all(frames_in(self.watcher, entry) <= self.sound for entry in entries), (
                "a page was readable before its event"
            )
        if not np.array_equal(pages, _contents_of(prompt, size)[: len(pages)]):
            assert_exact(keys, pages)  # says which byte is wrong
        return len(pages)


def frames_in(session: Session, entry: int) -> set[int]:
    return set(np.frombuffer(session.frames(entry), np.uint32).tolist())


def write(session: Session, entry: int, content: Bytes) -> None:
    where = np.array([content.ctypes.data], np.uint64), np.array([content.nbytes], np.uint64)
    assert session.copy_in(np.array([entry], np.uint32), *where, 0, 1) == 1
