"""An engine in a process of its own, which does what the race asks and says what it was served."""

from __future__ import annotations

import mmap
import os
import re
import signal
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self, cast

import msgspec
import numpy as np

from race.contestants.cache import OpenEngine, Pages, Sizes, Tokens

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["race.preloaded"])
START_S = 120.0
_WORD = 0x9E3779B97F4A7C15


class Served(msgspec.Struct, frozen=True):
    """What a load of a prompt's pages returned, in pages: the right bytes, other bytes, or nothing."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def __add__(self, other: Served) -> Served:
        return Served(self.right + other.right, self.wrong + other.wrong, self.missed + other.missed)


class Answer(msgspec.Struct, frozen=True):
    """The answer of an engine.

    Attributes:
        value: What the call returned: a number of pages, or Served; None after an error and without an answer.
        seconds: How long the engine waited for the cache; without an answer, how long the race waited.
        cpu: CPU seconds of the engine's process.
        error: The exception that the engine got, "" without one.
        answered: False if the engine was still waiting when the race stopped to.
    """

    value: Any
    seconds: float
    cpu: float = 0.0
    error: str = ""
    answered: bool = True


def tokens_of(prompt: int, pages: int, page_tokens: int) -> Tokens:
    """Returns the tokens of a prompt: other numbers, other tokens from the first page on."""
    return np.random.default_rng(prompt).integers(0, 32000, pages * page_tokens, dtype=np.int32)


def fill_page(page: Pages, prompt: int, number: int) -> None:
    """Writes the only right content of a page of a prompt."""
    page.view(np.uint64)[:] = np.uint64(((prompt + 1) * 1_000_003 + number) * _WORD % 2**64)


def judge(prompt: int, out: Pages, loaded: int) -> Served:
    """Compares every byte of the loaded pages."""
    right = 0
    for number in range(loaded):
        expected = np.uint64(((prompt + 1) * 1_000_003 + number) * _WORD % 2**64)
        right += bool((out[number].view(np.uint64) == expected).all())
    return Served(right, loaded - right, len(out) - loaded)


class EngineProcess:
    """One engine.

    Args:
        opener: Opens the engine in its process.
        sizes: The sizes.
        user: The user ID under which it runs; None for this process's.
    """

    def __init__(self, opener: OpenEngine, sizes: Sizes, user: int | None = None) -> None:
        self._pipe, theirs = FORKS.Pipe()
        self._process = FORKS.Process(target=_serve, args=(opener, sizes, user, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._asked = 0
        self.opened = self._receive(START_S)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid or 0

    def ask(self, what: str, *arguments: Any, timeout: float = 60.0) -> Answer:
        """Lets the engine call one operation of Desk, and waits for its answer."""
        self.send(what, *arguments)
        return self._receive(timeout)

    def send(self, what: str, *arguments: Any) -> None:
        """Lets the engine begin an operation."""
        self._asked += 1
        self._pipe.send((self._asked, what, arguments))

    def receive(self, timeout: float = 60.0) -> Answer:
        """Returns the answer to what was sent."""
        return self._receive(timeout)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the engine."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the engine."""
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.is_alive():
            self.signal(signal.SIGCONT)
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self.kill()

    def _receive(self, timeout: float) -> Answer:
        """Returns the answer to the last question. Late answers to earlier ones, which timed out, are dropped."""
        began = time.perf_counter()
        try:
            while self._pipe.poll(max(0.0, began + timeout - time.perf_counter())):
                number, answer = self._pipe.recv()
                if number == self._asked:
                    return cast(Answer, answer)
        except (EOFError, ConnectionResetError):
            return Answer(None, time.perf_counter() - began, error="the engine's process ended")
        return Answer(None, time.perf_counter() - began, answered=False)


class Desk:
    """What the race can ask of an engine, in the engine's process. Prompts are numbers."""

    def __init__(self, opener: OpenEngine, sizes: Sizes) -> None:
        self._engine, self._sizes = opener(), sizes
        self._memory: Pages = np.empty((0, sizes.page), np.uint8)

    def lookup(self, prompt: int, pages: int) -> tuple[Any, float, float]:
        """Looks up a prompt. Returns the pages, and the seconds by the clock and of CPU time, like all others."""
        return self._timed(self._engine.lookup, self._prepared(prompt, pages))

    def lookups(self, prompt: int, pages: int, times: int) -> tuple[Any, float, float]:
        """Looks up the same prompt some times. Returns the pages of the last time and the seconds of all."""
        prepared = self._prepared(prompt, pages)
        return self._timed(lambda: [self._engine.lookup(prepared) for _ in range(times)][-1])

    def store(self, prompt: int, pages: int) -> tuple[Any, float, float]:
        """Stores a prompt with its right content."""
        return self._timed(self._engine.store, self._prepared(prompt, pages), self._filled(prompt, pages))

    def load(self, prompt: int, pages: int) -> tuple[Any, float, float]:
        """Loads a prompt into zeroed memory. Comparing is not timed."""
        out = self._rows(pages)
        out[:] = 0
        loaded, seconds, cpu = self._timed(self._engine.load, self._prepared(prompt, pages), out)
        return judge(prompt, out, loaded), seconds, cpu

    def visit(self, blocks: Sequence[int]) -> tuple[Any, float, float]:
        """Looks up a prompt of numbered blocks and stores all of them. Returns how many were found."""
        step = self._sizes.page_tokens
        tokens = np.array(blocks, np.int64)[:, None] * step + np.arange(step)
        prompt = self._engine.prepare(tokens.astype(np.int32).reshape(-1))
        found, seconds, cpu = self._timed(self._engine.lookup, prompt)
        self._engine.store(prompt, self._rows(len(blocks)))
        return found, seconds, cpu

    def memcpy(self, pages: int) -> tuple[Any, float, float]:
        """Copies as many bytes once within this process, with one thread."""
        rows = self._rows(2 * pages)
        return self._timed(np.copyto, rows[:pages], rows[pages:])

    def begin_store(self, prompt: int, pages: int) -> tuple[Any, float, float]:
        """Stores half of a prompt's bytes and reports nothing as complete."""
        return self._timed(self._engine.begin_store, self._prepared(prompt, pages), self._filled(prompt, pages))

    def begin_load(self, prompt: int, pages: int) -> tuple[Any, float, float]:
        """Pins a prompt as a load does."""
        return self._timed(self._engine.begin_load, self._prepared(prompt, pages))

    def close(self) -> None:
        """Closes the engine."""
        self._engine.close()

    def _prepared(self, prompt: int, pages: int) -> Any:
        return self._engine.prepare(tokens_of(prompt, pages, self._sizes.page_tokens))

    def _filled(self, prompt: int, pages: int) -> Pages:
        rows = self._rows(pages)
        for number in range(pages):
            fill_page(rows[number], prompt, number)
        return rows

    def _rows(self, pages: int) -> Pages:
        """Returns memory that was touched before."""
        if len(self._memory) < pages:
            # O_DIRECT needs memory that begins at a page of the kernel.
            mapped = np.frombuffer(mmap.mmap(-1, pages * self._sizes.page), np.uint8)
            mapped[:] = 1
            self._memory = mapped.reshape(pages, self._sizes.page)
        return self._memory[:pages]

    @staticmethod
    def _timed(call: Any, *arguments: Any) -> tuple[Any, float, float]:
        began, cpu = time.perf_counter(), time.process_time()
        value = call(*arguments)
        return value, time.perf_counter() - began, time.process_time() - cpu


def _serve(opener: OpenEngine, sizes: Sizes, user: int | None, pipe: Connection) -> None:
    try:
        if user is not None:
            _import_everything(opener, sizes)
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        desk = Desk(opener, sizes)
    except Exception as error:  # noqa: BLE001 -- an engine's error is a result
        pipe.send((0, Answer(None, 0.0, error=_text(error))))
        return
    pipe.send((0, Answer(None, 0.0)))
    try:
        while True:
            number, what, arguments = pipe.recv()
            pipe.send((number, _answer(desk, what, arguments)))
    except (EOFError, BrokenPipeError):
        desk.close()


def _answer(desk: Desk, what: str, arguments: tuple[Any, ...]) -> Answer:
    began = time.perf_counter()
    try:
        value, seconds, cpu = getattr(desk, what)(*arguments)
    except Exception as error:  # noqa: BLE001 -- an engine's error is a result
        return Answer(None, time.perf_counter() - began, error=_text(error))
    return Answer(value, seconds, cpu)


def _import_everything(opener: OpenEngine, sizes: Sizes) -> None:
    """Uses an engine once, so that all modules are imported: the other user may be unable to read them."""
    engine = opener()
    engine.lookup(engine.prepare(tokens_of(0, 1, sizes.page_tokens)))
    engine.close()


def _text(error: Exception) -> str:
    """Returns the first line of an exception without the name of a file."""
    return re.sub(r": '/.*'", "", f"{type(error).__name__}: {error}".partition("\n")[0])[:200]
