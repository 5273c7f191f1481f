"""Tests the replay of traces against the eviction policies: with simple models, and on a trace that LRU misses."""

from __future__ import annotations

import ctypes
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

import policies
from cache_models import Arc, S3Fifo
from eviction.core import Cache, compiled_core, hits_of, replay
from eviction.hints import HintsWanted, derived_hints, seconds_until_return, with_hints
from eviction.traces import Trace, merged
from pagetier.shm._core import HintKind

Prompts = Sequence[Sequence[int]]


@pytest.fixture(scope="module")
def core() -> ctypes.CDLL:
    return compiled_core()


def trace_of(prompts: Prompts, step: float = 0.1) -> Trace:
    """Returns a trace in which a request arrives every `step` seconds. A page is a prefix of a prompt."""
    numbers: dict[tuple[int, ...], int] = {}
    pages = [
        numbers.setdefault(tuple(prompt[: end + 1]), len(numbers)) for prompt in prompts for end in range(len(prompt))
    ]
    starts = np.cumsum([0, *map(len, prompts)])
    seconds = np.arange(len(prompts), dtype=np.float64) * step
    return Trace(starts.astype(np.int64), np.array(pages, np.int32), seconds, len(numbers))


def prompts_of(trace: Trace) -> list[list[int]]:
    return [trace.pages[begin:end].tolist() for begin, end in zip(trace.starts, trace.starts[1:], strict=False)]


def most_hits(prompts: Prompts, room: int) -> int:
    """Returns the most hits, by trying every content of the cache after each request."""
    best = {frozenset[int](): 0}
    for prompt in prompts:
        after: dict[frozenset[int], int] = {}
        for cache, hits in best.items():
            found = hits + next((at for at, page in enumerate(prompt) if page not in cache), len(prompt))
            candidates = cache | set(prompt)
            for kept in map(frozenset, combinations(candidates, min(room, len(candidates)))):
                after[kept] = max(after.get(kept, 0), found)
        best = after
    return max(best.values())


def lru_hits(prompts: Prompts, room: int) -> int:
    """Returns the hits of an LRU: the tail of a prompt is older than its head, and a miss stores the whole prompt."""
    cache: dict[int, int] = {}
    hits = clock = 0
    for prompt in prompts:
        clock += 1000
        used = prompt[:room]
        found = next((at for at, page in enumerate(used) if page not in cache), len(used))
        hits += found
        begin = clock + 500 if found < len(used) else clock
        times = {page: begin - at for at, page in enumerate(used)}
        cache.update({page: time for page, time in times.items() if page in cache})
        for page, time in times.items():
            if page not in cache and len(cache) == room:
                del cache[min(cache, key=cache.__getitem__)]
            cache[page] = time
    return hits


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_is_what_the_best_of_all_caches_hits(core: ctypes.CDLL, seed: int) -> None:
    dice = random.Random(seed)
    trace = trace_of([[dice.randrange(3) for _ in range(dice.randrange(1, 4))] for _ in range(12)])
    for room in (2, 3, 4):
        assert hits_of(core, "optimum", trace, room) == most_hits(prompts_of(trace), room)


@pytest.mark.parametrize("seed", range(4))
def test_lru_in_the_index_hits_what_a_simple_lru_hits(core: ctypes.CDLL, seed: int) -> None:
    dice = random.Random(seed)
    trace = trace_of([[dice.randrange(6) for _ in range(dice.randrange(1, 6))] for _ in range(400)])
    for room in (8, 16, 40):
        assert replay(core, trace, Cache(room), "lru").hits == lru_hits(prompts_of(trace), room)


@pytest.mark.parametrize(("policy", "model"), [("arc", Arc), ("s3fifo", S3Fifo)])
@pytest.mark.parametrize("seed", range(4))
def test_the_policies_of_the_literature_hit_what_their_papers_say(
    core: ctypes.CDLL, policy: str, model: type[Arc | S3Fifo], seed: int
) -> None:
    dice = random.Random(seed)
    pages = [min(int(dice.expovariate(0.05)) + number // 500, 200) for number in range(3000)]
    trace = trace_of([[page] for page in pages])
    for room in (5, 20, 60):
        assert hits_of(core, policy, trace, room) == sum(map(model(room).use, pages))


@pytest.mark.parametrize("policy", ["arc", "s3fifo"])
def test_a_prompt_larger_than_the_cache_hits_its_head(core: ctypes.CDLL, policy: str) -> None:
    trace = trace_of([list(range(30))] * 5)
    assert hits_of(core, policy, trace, 10) == 4 * 10


def test_merged_traces_have_no_page_in_common_and_keep_their_times() -> None:
    first, second = trace_of([[1], [1, 2]], step=1.0), trace_of([[1], [3], [1]], step=0.4)
    both = merged(first, second, 0.5)
    assert both.seconds.tolist() == [0.0, 0.5, 0.9, 1.0, 1.3]
    assert prompts_of(both) == [[0], [2], [3], [0, 1], [2]]
    assert both.distinct == 4


def sessions(seed: int, requests: int) -> list[list[int]]:
    """Returns prompts of sessions that return soon and grow, among prompts that never return."""
    dice = random.Random(seed)
    running = [[number] for number in range(40)]
    prompts = []
    for number in range(requests):
        if number % 2:
            prompts.append([-number, *range(20)])
            continue
        prompt = dice.choice(running)
        prompt.append(1000 + number)
        prompts.append(list(prompt))
    return prompts


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("pages", [1, 8])
@pytest.mark.parametrize("step", [0.25, 1.0])
def test_a_prompt_that_returns_is_stored_when_it_is_used_for_the_seventh_time(
    core: ctypes.CDLL, step: float, pages: int, others: int
) -> None:
    """The policy expects the pages in memory to return, and learns nothing of them while nothing else is stored."""
    returning = [[number, 0] for number in range(256)]
    busy = [prompt for turn in range(60) for prompt in (*returning, [-turn - 1, *range(31)])]
    alone = [[-1000, *range(pages - 1)]]
    before, after = trace_of(busy, step), busy
    for turn in range(20):
        once = [[-2000 - 2 * turn - other, *range(3)] for other in range(others)]
        after = [*after, *alone, *once]
    hits = [replay(core, trace, Cache(512), "cadence").hits for trace in (before, trace_of(after, step))]
    assert hits[1] - hits[0] >= (20 - 7) * pages


@pytest.mark.parametrize("policy", ["lru", "cadence"])
def test_a_page_that_left_memory_hits_on_the_disk(core: ctypes.CDLL, policy: str) -> None:
    """All prompts fit on the disk, and memory holds the latest two."""
    trace = trace_of([[number % 10, *range(9)] for number in range(100)])
    without, behind = (replay(core, trace, Cache(20, disk), policy) for disk in (0, 200))
    assert without.hits == 0 and without.written == 0
    assert behind.hits == 90 * 10 and behind.hits_in_memory == 0
    assert behind.written == 10 * 10, "a page that is on the disk is not written again"


def test_the_disk_holds_as_many_pages_as_it_has_room_for(core: ctypes.CDLL) -> None:
    """The prompts return in a circle, so LRU loses each before it returns unless all of them fit."""
    trace = trace_of([[number % 10, *range(9)] for number in range(100)])
    few, most = (replay(core, trace, Cache(20, disk), "lru").hits for disk in (40, 100))
    assert few == 0 and most > 800, (few, most)


def test_another_seed_draws_other_pages(core: ctypes.CDLL) -> None:
    trace = trace_of(sessions(5, 3000))
    hits = [replay(core, trace, Cache(700, seed=seed), "cadence").hits for seed in (1, 1, 2, 3)]
    assert hits[0] == hits[1] and len(set(hits)) > 1, hits
    assert len({replay(core, trace, Cache(700, seed=seed), "lru").hits for seed in (1, 2)}) == 1


@pytest.mark.parametrize("speed", [0.25, 1.0, 60.0, 600.0])
def test_cadence_keeps_sessions_that_lru_evicts(core: ctypes.CDLL, speed: float) -> None:
    trace, room = trace_of(sessions(5, 3000)), 700
    best = hits_of(core, "optimum", trace, room)
    lru, cadence = (replay(core, trace, Cache(room, speed=speed), policy).hits for policy in ("lru", "cadence"))
    assert lru < 0.5 * best and cadence > 0.75 * best, (lru, cadence, best)


@pytest.mark.parametrize("seed", range(4))
def test_cadence_is_lru_until_it_has_learned(core: ctypes.CDLL, seed: int) -> None:
    """A page that was used and then not stored again keeps the time of its use."""
    dice = random.Random(seed)
    trace = trace_of([[dice.randrange(40)] for _ in range(400)])
    for room in (20, 30):
        lru, cadence = (replay(core, trace, Cache(room), policy) for policy in ("lru", "cadence"))
        assert cadence.stored < 256, "it learns after a round of 256 pages"
        assert cadence.hits == lru.hits


def test_cadence_follows_lru_where_that_hits_more(core: ctypes.CDLL) -> None:
    """The prompts drift: what was used often never returns, and what is new returns once, soon."""
    dice = random.Random(3)
    trace = trace_of([[number // 40, dice.randrange(8) + number // 5, 1, 2] for number in range(6000)])
    lru, cadence = (replay(core, trace, Cache(60), policy).hits for policy in ("lru", "cadence"))
    assert cadence > 0.97 * lru, (cadence, lru)


def chats(seed: int, requests: int) -> list[list[int]]:
    """Returns prompts of chats, of which half continue once, after about 150 others. History does not show which."""
    dice = random.Random(seed)
    prompts: list[list[int]] = []
    later: dict[int, list[int]] = {}
    while len(prompts) < requests:
        prompt = later.pop(len(prompts), None)
        if prompt is None:
            prompt = [len(prompts), *range(9)]
            if dice.random() < 0.5:
                later[len(prompts) + dice.randrange(100, 200)] = [*prompt, 1, 2, 3]
        prompts.append(prompt)
    return prompts


@pytest.mark.parametrize("seed", range(2))
def test_hints_count_as_far_as_they_are_right(core: ctypes.CDLL, seed: int) -> None:
    trace, room = trace_of(chats(seed, 4000), step=0.5), 400
    best = hits_of(core, "optimum", trace, room)

    def share(hints: str) -> float:
        hinted = with_hints(trace, HintsWanted.parse(hints, seed)) if hints else trace
        return float(replay(core, hinted, Cache(room), "cadence").hits / best)

    none, right, mostly, random_ones = map(share, ("", "over:1", "over:0.9", "over:0.5"))
    assert right > none + 0.2 and mostly > none + 0.1, (none, right, mostly)
    assert random_ones > none - 0.03, (none, random_ones)
    assert share("returns:1") > none + 0.2


def test_hints_are_derived_from_what_follows() -> None:
    trace = trace_of([[1, 2], [7], [1, 2, 3], [8], [1, 2, 3, 4]], step=30.0)
    until = seconds_until_return(trace.starts, trace.pages, trace.seconds)
    assert until.tolist() == [60.0, np.inf, 60.0, np.inf, np.inf]
    over, within_60 = int(HintKind.OVER), int(HintKind.WITHIN_60)
    assert derived_hints(until, HintsWanted("returns", 1.0)).tolist() == [within_60, over, within_60, over, over]
    assert derived_hints(until, HintsWanted("over", 1.0)).tolist() == [0, over, 0, over, over]
    wrong = derived_hints(until, HintsWanted("returns", 0.0)).tolist()
    assert all(
        hint not in (0, true) for hint, true in zip(wrong, [within_60, over, within_60, over, over], strict=True)
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.jsonl"
    lines = [{"timestamp": 10 * at, "input_length": 40, "hash_ids": [at % 7, 100 + at % 50, 9]} for at in range(300)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, policies.__file__, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_the_command_prints_a_cell_for_each_policy_and_size(small: Path, tmp_path: Path) -> None:
    done = command(f"{small}:16", "--shares", 10, 50, "--json", "--picture", tmp_path / "small.svg")
    cells = [json.loads(line) for line in done.stdout.splitlines()]
    names = [*policies.POLICIES, "optimum"]
    assert [(cell["share"], cell["policy"]) for cell in cells] == [
        (share, name) for share in (10, 50) for name in names
    ]
    assert all(0 <= cell["ratio"] <= cell["percent"] <= 100 for cell in cells)
    picture = ElementTree.parse(tmp_path / "small.svg")
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}polyline")) == len(names)


def cells_of(*changes: float) -> list[policies.Cell]:
    """Returns cells in which cadence hits so many per cent more than LRU."""
    cells = []
    for share, change in enumerate(changes):
        for name, hits in (("lru", 50.0), ("cadence", 50 + change / 2)):
            cells.append(policies.Cell("a", 1.0, float(share), name, hits, hits))
    return cells


def test_the_command_fails_if_cadence_hits_less_than_lru_in_a_cell() -> None:
    assert policies.worse_than_lru(cells_of(12.0, -0.9)) == []
    assert policies.worse_than_lru(cells_of(12.0, -1.1)) == [
        "a at 1 %, disk 0x, speed 1, seed 1: cadence 49.5, lru 50.0 (-1.1 %)"
    ]


def test_the_command_fails_if_cadence_gains_too_little_in_the_mean() -> None:
    assert policies.worse_than_lru(cells_of(5.2, 4.9)) == []
    assert policies.worse_than_lru(cells_of(5.0, 4.8)) == [
        "in the mean of 2 cells 1.049 times LRU's hits, less than 1.05"
    ]


def test_cells_are_compared_with_lru_at_the_same_disk() -> None:
    lru, same = cells_of(10.0)
    larger = msgspec.structs.replace(same, disk=3.0)
    assert [before for _, before in policies.compared([lru, same, larger])] == [50.0]
