"""Four real vLLM engines behind a router that gives them the turns of chats in turn, whatever they have cached.

A turn's prompt is that of the turn before and 256 tokens more, which stand for its answer and for what the user says
next. Between two turns of a chat all other chats take a turn. An engine's own cache holds four chats of the last turn
and nine of the first; one turn in four comes to the engine that had the chat before. The systems get the same prompts,
one at a time, one system after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from daemon_setup import Stage
from race.contestants.cache import Sizes
from race.contestants.lmcache_server import LmcacheServer
from race.contestants.registry import LMCACHE, NATIVE, PAGETIER, reason_absent
from race.contests.serving import CHUNK, CHUNK_BYTES, VLLM, lmcache_transfer, set_environment
from race.results import Absent, Figures, Form, Line
from serving.compare import FRAME_BYTES, SIZES, native_transfer, our_transfer
from serving.engine import Engine
from serving.model import VOCABULARY, llama

ENGINES = 4
MEMORY = 384 << 20
"""Bytes of each system in total: more than all chats take at their end."""
BLOCKS = 320
"""Blocks of 32 tokens in the cache of each engine."""
CHATS, TURNS = 24, 6
FIRST, MORE = 1030, 256
"""Tokens of a chat's first prompt, and those that each turn adds."""
_SHORT = "the short form leaves it out: sixteen engines take minutes to start"

Transfer = dict[str, Any] | None
Prompt = list[int]


class ChatTurn(msgspec.Struct, frozen=True):
    """A turn of a chat, numbered from 0, and its whole prompt."""

    turn: int
    prompt: Prompt


class TurnResult(msgspec.Struct, frozen=True):
    """What one engine did with a turn: the tokens that it found in a cache, and the ms until the first token."""

    chat: ChatTurn
    cached: int
    first_token: float


def measure(form: Form, folder: Path) -> Iterator[Line]:
    """Yields after each system the figures so far; the last ones count. A system that cannot run is left out."""
    if reason := reason_absent(NATIVE) or (_SHORT if form is Form.QUICK else ""):
        yield Absent("router", "all", reason)
        return
    set_environment()
    model = llama(folder / "model", **SIZES)
    figures = RouterFigures()
    for name, start in STARTS.items():
        try:
            figures.add(name, *_served(start, folder, model))
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever it is, the others race
            yield Absent("router", name, f"cannot serve: {str(error)[-500:]}")
        yield from figures.lines()


class RouterFigures:
    """The figures of all systems. The places of two lists are of the same request, or of the same turn of all chats."""

    def __init__(self) -> None:
        self._first: dict[str, list[float]] = {}
        self._later: dict[str, list[float]] = {}
        self._found: dict[str, list[float]] = {}
        self._memory: dict[str, list[float]] = {}

    def add(self, name: str, seen: Sequence[TurnResult], memory: list[float]) -> None:
        """Adds what a system did."""
        self._first[name] = [one.first_token for one in seen if not one.chat.turn]
        self._later[name] = [one.first_token for one in seen if one.chat.turn]
        self._memory[name] = memory
        turns = sorted({one.chat.turn for one in seen} - {0})
        self._found[name] = [_found([one for one in seen if one.chat.turn == turn]) for turn in turns]

    def lines(self) -> Iterator[Line]:
        """Yields the figures."""
        yield Figures("router", "first turns: first token", "ms", "low", self._first)
        yield Figures("router", "later turns: first token", "ms", "low", self._later)
        yield Figures("router", "later turns: tokens found", "%", "high", self._found)
        yield Figures("router", "memory taken from the machine", "MiB", "low", self._memory)


def turns_of_chats() -> list[list[ChatTurn]]:
    """Returns the first turns of all chats, then the second ones, and so on, each time in another order."""
    numbers = random.Random(5)
    chats: list[Prompt] = [_tokens(numbers, FIRST) for _ in range(CHATS)]
    turns = []
    for turn in range(TURNS):
        if turn:
            chats = [[*chat, *_tokens(numbers, MORE)] for chat in chats]
        turns.append([ChatTurn(turn, chat) for chat in numbers.sample(chats, len(chats))])
    return turns


def _tokens(numbers: random.Random, count: int) -> Prompt:
    return [numbers.randrange(10, VOCABULARY) for _ in range(count)]


def _found(seen: Sequence[TurnResult]) -> float:
    """Returns how many per cent of the prompts' tokens were cached."""
    return 100 * sum(one.cached for one in seen) / sum(len(one.chat.prompt) for one in seen)


def _served(start: Start, folder: Path, model: Path) -> tuple[list[TurnResult], list[float]]:
    """Runs a system. Returns what it did, and after each turn how many MiB of memory the machine has less."""
    before, memory, seen = _available(), list[float](), list[TurnResult]()
    with ExitStack() as stack:
        name, transfers = start(folder, stack)
        engines = [_engine(f"{name}-{at}", model, transfer, stack) for at, transfer in enumerate(transfers)]
        for engine in engines:
            engine.ready()
        for turn in turns_of_chats():
            seen += [_ask(engines[at % ENGINES], one) for at, one in enumerate(turn)]
            memory.append((before - _available()) / 2**20)
    return seen, memory


def _engine(name: str, model: Path, transfer: Transfer, stack: ExitStack) -> Engine:
    engine = Engine(name, model, transfer, {"num_gpu_blocks_override": BLOCKS})
    stack.callback(engine.stop)
    return engine


def _ask(engine: Engine, chat: ChatTurn) -> TurnResult:
    answer = engine.run([chat.prompt])
    return TurnResult(chat, answer.cached[0], 1e3 * answer.first_tokens[0])


def _available() -> int:
    """Returns the bytes that new processes could have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _alone(_folder: Path, _stack: ExitStack) -> tuple[str, list[Transfer]]:
    return "alone", [None] * ENGINES


def _native(_folder: Path, _stack: ExitStack) -> tuple[str, list[Transfer]]:
    return "native", [native_transfer(MEMORY // ENGINES)] * ENGINES


def _pagetier(_folder: Path, stack: ExitStack) -> tuple[str, list[Transfer]]:
    stage = stack.enter_context(Stage("--arena-size", str(MEMORY), "--set", f"arena.frame_size={FRAME_BYTES}"))
    stage.client().close()
    return "pagetier", [our_transfer(stage)] * ENGINES


def _lmcache(folder: Path, stack: ExitStack) -> tuple[str, list[Transfer]]:
    if reason := reason_absent(LMCACHE):
        raise SystemExit(reason)
    server = stack.enter_context(LmcacheServer(Sizes(MEMORY, CHUNK_BYTES, CHUNK), folder))
    return "lmcache", [lmcache_transfer(server.port)] * ENGINES


Start = Callable[[Path, ExitStack], tuple[str, list[Transfer]]]
"""Starts what a system's engines share. Returns a name for files, and the kv_transfer_config of each engine."""
STARTS: Mapping[str, Start] = {PAGETIER: _pagetier, LMCACHE: _lmcache, NATIVE: _native, VLLM: _alone}
