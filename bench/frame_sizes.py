"""Measures what pages that fill frames of the default size cost, against each fixed frame size, in CPU time.

A prompt of a model is stored, matched and loaded: with the pages that an engine chooses in frames of 1 MiB, and with
pages of one block, and those pages, in frames of other sizes. Each side has a daemon; they measure in turn. CPU time is
that of the client, the daemon and its disk worker. Some arenas are faster than others, so that there are several sets
of daemons, and a control. `BENCH_MODELS="DeepSeek V3" BENCH_BLOCKS=16` takes one case.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from comparison.paired_ratio import ALLOWED, PairedRatio, paired_ratio
from daemon_setup import Stage, settle
from disk_setup import Scene, until
from measure import REPORTED, Goal, Result, at_most, main
from model_pages import BLOCKS, MODELS, Layout, chosen, fixed
from pagetier.client import Client, Keys, Namespace
from pagetier.client.group_match import GroupKeys
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Flush, Space
from sparse_tier import PageForm, make_sparse_tier

SETS: Final = int(os.environ.get("BENCH_SETS", "5"))
ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "21"))
DISK_ROUNDS: Final = int(os.environ.get("BENCH_DISK_ROUNDS", "5"))
_MODELS: Final = os.environ.get("BENCH_MODELS", ",".join(MODELS)).split(",")
_BLOCKS: Final = [int(block) for block in os.environ.get("BENCH_BLOCKS", ",".join(map(str, BLOCKS))).split(",")]
_PROMPT_BYTES: Final = 24 << 20
_ARENA: Final = "192MiB"
_DISK: Final = "512MiB"
_PATIENCE_S: Final = 900.0
_STORES: Final = 4
_MATCHES: Final = 20
_SPARSE_BYTES: Final = 8 << 30
_WITHIN: Final = at_most(ALLOWED)
Costs = dict[str, list[float]]
"""For each operation, the CPU seconds of a prompt: the median of each set of daemons."""

_T = TypeVar("_T")
Memory = npt.NDArray[np.uint8]
"""Host memory for the pages of one group of a prompt."""


class Side:
    """The prompts of a model with pages of one layout, and the daemon that keeps them in memory.

    Attributes:
        layout: The layout.
        costs: For each operation, the CPU seconds of it in each round.
    """

    def __init__(self, layout: Layout, stage: Stage, client: Client, tokens: int) -> None:
        self.layout, self._stage, self._client = layout, stage, client
        self._pages = tokens // layout.page_tokens
        self.costs: dict[str, list[float]] = defaultdict(list)

    def run(self, memory: Memory) -> None:
        """Measures the operations on one new prompt."""
        prompts = [group for _ in range(_STORES) for group in self._prompt()]
        self._spend("store", lambda: self._reserve(prompts))
        prompt = self._prompt()
        self._spend("copy_in", lambda: self._store(prompt, memory))
        self._spend("match", lambda: self._match(prompt))
        self._spend("copy_out", lambda: self._load(prompt, memory))

    def _prompt(self) -> list[GroupKeys]:
        keys = [os.urandom(KEY_BYTES * self._pages) for _ in self.layout.kinds]
        return [
            GroupKeys(kind, Keys(Namespace(model=f"bench {at}", dtype="none", page_tokens=kind.page_tokens), data))
            for at, (kind, data) in enumerate(zip(self.layout.kinds, keys, strict=True))
        ]

    def _reserve(self, prompts: list[GroupKeys]) -> None:
        for group, nbytes in zip(prompts, cycle(self.layout.page_bytes), strict=False):
            assert self._client.reserve(group.keys, nbytes).publish().stored == self._pages

    def _store(self, prompt: list[GroupKeys], memory: Memory) -> None:
        for group, nbytes in zip(prompt, self.layout.page_bytes, strict=True):
            pages = memory[: self._pages * nbytes].reshape(self._pages, nbytes)
            assert self._client.store(group.keys, pages).stored == self._pages

    def _match(self, prompt: list[GroupKeys]) -> None:
        for _ in range(_MATCHES):
            with self._client.find_groups(prompt) as match:
                assert match.tokens == self._pages * self.layout.page_tokens

    def _load(self, prompt: list[GroupKeys], memory: Memory) -> None:
        for group, nbytes in zip(prompt, self.layout.page_bytes, strict=True):
            pages = memory[: self._pages * nbytes].reshape(self._pages, nbytes)
            with self._client.match(group.keys) as match:
                assert self._client.load(match, pages) == self._pages

    def _spend(self, operation: str, action: Callable[[], None]) -> None:
        began = self._cpu()
        action()
        self.costs[operation].append(self._cpu() - began)

    def _cpu(self) -> float:
        children = Path(f"/proc/{self._stage.pid}/task/{self._stage.pid}/children").read_text().split()
        return time.process_time() + sum(map(_process_cpu, (self._stage.pid, *map(int, children))))


class DiskSide(Side):
    """The same with a disk, to which pages are written at once.

    One observer is attached all the time: each that attaches takes the daemon some milliseconds, as much as the disk.
    """

    def __init__(self, layout: Layout, scene: Scene, client: Client, tokens: int, stack: ExitStack) -> None:
        super().__init__(layout, scene, client, tokens)
        until("the disk", scene.disk_open, _PATIENCE_S)
        self._link, self._observer = stack.enter_context(scene.observing())

    def run(self, memory: Memory) -> None:
        """Measures writing and reading one new prompt."""
        prompt, written = self._prompt(), self._observer.header().disk_written
        self._spend("disk_write", lambda: self._write(prompt, memory, written))
        self._link.ask(Flush(1, None, "memory"), _PATIENCE_S)
        settle()
        self._spend("disk_read", lambda: self._load(prompt, memory))

    def _write(self, prompt: list[GroupKeys], memory: Memory, before: int) -> None:
        self._store(prompt, memory)
        pages = before + self._pages * len(prompt)
        while self._observer.header().disk_written < pages:
            time.sleep(0.05)


def _process_cpu(pid: int) -> float:
    """Returns the seconds that all threads of a process ran, also those that have ended (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


def _prompt_tokens(ours: Layout) -> int:
    """Returns the tokens of a prompt of about the bytes that are wanted, and at least one page."""
    page = sum(ours.page_bytes)
    return ours.page_tokens * max(1, _PROMPT_BYTES // page)


def _measured(make: Callable[[Layout, ExitStack, int], Side], layouts: Sequence[Layout], rounds: int) -> list[Costs]:
    """Returns the costs of each layout of a case. The chosen layout is the first."""
    tokens = _prompt_tokens(layouts[0])
    largest = max(tokens // one.page_tokens * size for one in layouts for size in one.page_bytes)
    memory = np.random.default_rng(5).integers(0, 256, largest, np.uint8)
    costs: list[Costs] = [defaultdict(list) for _ in layouts]
    for number in range(SETS):
        order = _turned(range(len(layouts)), number)  # the daemon that starts first reads some percent slower
        sides = _run(make, [layouts[at] for at in order], tokens, memory, rounds)
        for at, side in zip(order, sides, strict=True):
            for operation, spent in side.costs.items():
                costs[at][operation].append(statistics.median(spent[1:]))  # the first round warms up
    return costs


def _turned(items: Sequence[_T], number: int) -> list[_T]:
    """Returns the items in a circle, of which another one is the first for each number."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


def _run(
    make: Callable[[Layout, ExitStack, int], Side], layouts: Sequence[Layout], tokens: int, memory: Memory, rounds: int
) -> list[Side]:
    """Returns the sides of new daemons, which have run in turn."""
    with ExitStack() as stack:
        sides = [make(layout, stack, tokens) for layout in layouts]
        settle()
        for number in range(rounds + 1):
            for side in _turned(sides, number):
                side.run(memory)
    return sides


def _in_memory(layout: Layout, stack: ExitStack, tokens: int) -> Side:
    stage = stack.enter_context(Stage(*_sizes(layout)))
    return Side(layout, stage, _client(stage, stack), tokens)


def _on_disk(layout: Layout, stack: ExitStack, tokens: int) -> Side:
    folder = stack.enter_context(_folder())
    scene = stack.enter_context(Scene(folder, *_sizes(layout), "--disk-size", _DISK, "--set", "disk.write=through"))
    return DiskSide(layout, scene, _client(scene, stack), tokens, stack)


def _client(stage: Stage, stack: ExitStack) -> Client:
    """Returns a client of a daemon, which on a busy machine takes its time."""
    client = stack.enter_context(Client(stage.socket, timeout=_PATIENCE_S))
    if not client.wait_attached(_PATIENCE_S):
        raise SystemExit("the daemon did not become ready")
    return client


def _sizes(layout: Layout) -> tuple[str, ...]:
    return ("--arena-size", _ARENA, "--set", f"arena.frame_size={layout.frame_bytes}")


@contextmanager
def _folder() -> Iterator[Path]:
    """Makes a folder beside this file, since /tmp may be memory."""
    with tempfile.TemporaryDirectory(prefix=".frames-", dir=os.environ.get("BENCH_DISK_FOLDER", sys.path[0])) as name:
        yield Path(name)


def _results(case: str, layouts: Sequence[Layout], costs: Sequence[Costs]) -> Iterator[Result]:
    """Compares the first layout with the best of those after the second, which is the first one again.

    The goal is for frames whose index over a disk is small enough to choose them.
    """
    ours, again, *rest = costs
    fitting = [at for at, layout in enumerate(layouts[2:]) if layout.index_fits]
    for operation, spent in ours.items():
        name, others = f"{case} {operation}", [one[operation] for one in rest]
        if fitting:
            yield _against_best(name, spent, [others[at] for at in fitting], [layouts[2 + at] for at in fitting])
        yield _against_best(f"{name}, any frames", spent, others, layouts[2:], REPORTED)
        yield _result(f"{name}, control", "the same in another daemon", spent, again[operation], REPORTED)


def _against_best(
    name: str, ours: Sequence[float], others: Sequence[Sequence[float]], layouts: Sequence[Layout], goal: Goal = _WITHIN
) -> Result:
    bests = [_best(others, left_out=at) for at in range(SETS)]
    theirs = [others[best][at] for at, best in enumerate(bests)]
    return _result(name, str(layouts[statistics.mode(bests)]), ours, theirs, goal)


def _best(costs: Sequence[Sequence[float]], left_out: int) -> int:
    """Returns which layout is the cheapest by all sets but one, which is then compared with it.

    The cheapest of several noisy layouts looks cheaper than it is in the sets that it is chosen by.
    """
    others = [[spent for at, spent in enumerate(one) if at != left_out] or one for one in costs]
    return min(range(len(costs)), key=lambda at: statistics.median(others[at]))


def _result(name: str, best: str, ours: Sequence[float], theirs: Sequence[float], goal: Goal = _WITHIN) -> Result:
    ratio: PairedRatio = paired_ratio([one / other for one, other in zip(ours, theirs, strict=True)])
    against = f"{best}: {1e3 * statistics.median(theirs):.3g} ms; interval {ratio.low:.2f} to {ratio.high:.2f}"
    return Result(name, ratio.value, "x", against, goal)


def _starts(case: str, ours: Layout, other: Layout) -> Iterator[Result]:
    """Measures starts over pages on disk of the first group, with the CPU time of the stop."""
    costs: dict[Layout, list[float]] = {ours: [], other: []}
    with ExitStack() as stack:
        starts = [_SparseStart(layout, stack.enter_context(_folder())) for layout in costs]
        for number in range(SETS):
            pairs = [*zip(costs, starts, strict=True)]
            for layout, start in pairs[:: -1 if number % 2 else 1]:
                costs[layout].append(start.once())
    yield _result(f"{case} start", str(other), costs[ours], costs[other])


class _SparseStart:
    """A tier with records of many pages of a layout, over which a daemon starts."""

    def __init__(self, layout: Layout, folder: Path) -> None:
        nbytes = layout.page_bytes[0]
        form = PageForm(nbytes, layout.frame_bytes)
        self._pages, self._folder, self._layout = _SPARSE_BYTES // nbytes, folder, layout
        self._cap = self._pages * form.frames * layout.frame_bytes + (1 << 30)
        space = Namespace(model="bench", dtype="none", page_tokens=layout.page_tokens)
        given = Space(space.digest, space.name, space.page_tokens)
        make_sparse_tier(folder / "tier", "files", self._pages, given, form, self._cap)

    def once(self) -> float:
        """Returns the CPU time of a start until all pages are known, and of a stop."""
        before = _children_cpu()
        with Scene(self._folder, *_sizes(self._layout), "--disk-size", str(self._cap)) as scene:
            scene.client().close()
            while not scene.disk_open(self._pages):
                time.sleep(0.05)
        return _children_cpu() - before


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _of_case(name: str, block: int) -> Iterator[Result]:
    ours, case = chosen(MODELS[name](block)), f"{name}, blocks of {block}:"
    others = fixed(ours)
    for make, layouts, rounds in (
        (_in_memory, [ours, ours, *others], ROUNDS),
        (_on_disk, [ours, ours, *others[:2]], DISK_ROUNDS),
    ):
        yield from _results(case, layouts, _measured(make, layouts, rounds))
    yield from _starts(case, ours, others[0])


def measure() -> Iterator[Result]:
    """Runs all cases."""
    for name in _MODELS:
        for block in _BLOCKS:
            yield from _of_case(name, block)


if __name__ == "__main__":
    main("Frames of the default size against fixed ones", measure)
