"""Tests what a page costs the daemon, in executed instructions of Python: little beside what it does anyway."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from crowded_segments import ENGINES, crowded_segments
from eventually import eventually
from http_calls import request
from pagetier.daemon.config.address import Address
from pagetier.daemon.config.loader import Config
from pagetier.daemon.config.schema import HttpOptions
from pagetier.daemon.http.http_server import HttpServer, _HttpProcess
from pagetier.daemon.index.service import Service
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm.segments import Segments

PAGES: Final = 20
MOST: Final = 1000  # instructions for a page
TURNS: Final = 200  # of the daemon in the ten seconds between two refreshes of a page
PAGE, TURN = _HttpProcess.data_received.__code__, Service._tidy.__code__


class Instructions:
    """Counts the instructions of Python that the functions PAGE and TURN execute in a thread, and all that they call.

    Attributes:
        calls: How often each was called.
        executed: The instructions of all these calls together.
    """

    def __init__(self) -> None:
        self.calls, self.executed = Counter[CodeType](), Counter[CodeType]()
        self._outermost: FrameType | None = None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts those of this thread until the end of the block."""
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        if self._outermost is None and frame.f_code in (PAGE, TURN):
            self._outermost = frame
            self.calls[frame.f_code] += 1
        if self._outermost is None:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        if event == "opcode" and self._outermost is not None:
            self.executed[self._outermost.f_code] += 1
        elif event == "return" and frame is self._outermost:
            self._outermost = None
        return self._step


async def instructions_of(segments: Segments, place: Path, pages: int) -> Instructions:
    """Returns what a daemon of these segments executes while its page is served, and as long without a page."""
    loop, counted = asyncio.get_running_loop(), Instructions()
    config = Config(http=HttpOptions(listen=(Address(path=place),)))
    service = Service(segments, config, StatusPublisher(segments.owner), loop)
    service.open_to_engines()
    server = HttpServer(config, service)
    served = await loop.run_in_executor(None, lambda: eventually(lambda: request(place, "GET", "/").status == 200))
    assert served, "by a process of its own, which starts first"
    with counted.counted():
        for _ in range(pages):
            answer = await loop.run_in_executor(None, request, place, "GET", "/")
            assert answer.status == 200
        for _ in range(PAGES):
            service._tidying.cancel()
            service._tidy()
    server.stop()
    service.close()
    return counted


def test_the_page_of_a_crowded_index_is_hardly_noticed_by_the_daemon(tmp_path: Path) -> None:
    """The HTTP process reads the index and renders: the daemon says a few numbers and its last events.

    Another test shows that the calls of C among them walk over nothing (daemon/metrics/test_scrape_cost.py).
    """
    with crowded_segments() as segments:
        without = asyncio.run(instructions_of(segments, tmp_path / "0", 0))
        served = asyncio.run(instructions_of(segments, tmp_path / "1", PAGES))
    assert not without.calls[PAGE] and not without.executed[PAGE]
    assert PAGES <= served.calls[PAGE] <= 2 * PAGES, "a page asks two questions, which may arrive together"
    a_page = served.executed[PAGE] / PAGES
    a_turn = without.executed[TURN] / without.calls[TURN]
    assert 0 < a_page < MOST, f"{a_page} instructions for a page, {a_turn} for a turn"
    assert a_page < 0.01 * TURNS * a_turn


def test_namespaces_and_engines_add_nothing_to_it(segments: Segments, tmp_path: Path) -> None:
    small = asyncio.run(instructions_of(segments, tmp_path / "0", PAGES))
    with crowded_segments() as crowded:
        large = asyncio.run(instructions_of(crowded, tmp_path / "1", PAGES))
    difference = abs(large.executed[PAGE] - small.executed[PAGE]) / PAGES
    assert difference < ENGINES, "the two questions of a page arrive together or not"
