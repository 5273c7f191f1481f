"""Tests what the race measures with: real engines in processes of their own, and the order of its rounds."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from race.contestants.cache import Cache, Sizes
from race.contestants.file_tier import FileTier
from race.contestants.pagetier_cache import PagetierCache
from race.contests.trust.failures import server_stopped, writer_killed
from race.contests.trust.observation import Observation, Scene, Timeouts
from race.engine_process import EngineProcess, Served
from race.results import Absent, Figures
from race.rounds import RoundError, Team, run_rounds

SIZES = Sizes(memory=8 << 20, page=64 << 10, page_tokens=16)
PAGES = 4


def _files(sizes: Sizes, folder: Path) -> AbstractContextManager[Cache]:
    return FileTier(sizes, folder, "files")


@pytest.mark.parametrize("make", [_files, PagetierCache])
def test_pages_of_one_engine_are_right_in_another_and_half_a_store_is_a_miss(
    make: Callable[[Sizes, Path], AbstractContextManager[Cache]], tmp_path: Path
) -> None:
    with (
        make(SIZES, tmp_path) as cache,
        EngineProcess(cache.opener(), SIZES) as one,
        EngineProcess(cache.opener(), SIZES) as other,
    ):
        assert one.ask("store", 1, PAGES).value == PAGES
        assert [other.ask("lookup", prompt, PAGES).value for prompt in (1, 2)] == [PAGES, 0]
        assert other.ask("load", 1, PAGES).value == Served(right=PAGES)
        assert one.ask("begin_store", 2, PAGES).value == PAGES
        assert other.ask("load", 2, PAGES).value == Served(missed=PAGES)
        assert other.ask("no_such_operation").error.startswith("AttributeError")


def test_an_answer_that_is_late_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    with FileTier(SIZES, tmp_path, "files") as cache, EngineProcess(cache.opener(), SIZES) as engine:
        engine.ask("store", 1, PAGES)
        engine.signal(signal.SIGSTOP)
        late = engine.ask("lookup", 1, PAGES, timeout=0.1)
        engine.signal(signal.SIGCONT)
        assert not late.answered
        assert engine.ask("lookup", 2, PAGES).value == 0


def test_a_killed_writer_leaves_temporary_files_in_a_plain_folder(tmp_path: Path) -> None:
    seen = Observation("writer_killed", "files", "1")
    writer_killed(Scene(_files, tmp_path, Timeouts(call=5.0, recovery=0.2)), seen)
    assert seen.served == Served(missed=32) and seen.leak == "16 temporary files stay"


def test_each_call_to_a_stopped_server_is_recorded(tmp_path: Path) -> None:
    seen = Observation("server_stopped", "pagetier", "1")
    server_stopped(Scene(PagetierCache, tmp_path, Timeouts(call=10.0, recovery=10.0)), seen)
    assert [(call.name, call.pages) for call in seen.calls] == [("lookup", 16), ("load", 16), ("store", 0)]
    assert max(call.seconds for call in seen.calls) == seen.waited


def test_a_system_that_fails_leaves_the_rounds_and_the_others_stay() -> None:
    order: list[str] = []

    def play(team: Team, number: int) -> dict[str, float]:
        name = str(team.cache)
        order.append(name)
        if name == "b" and number == 2:
            raise RoundError("broken")
        return {"case": float(number)}

    running = {name: Team(name, [], SIZES) for name in "abc"}  # type: ignore[arg-type]
    lines = list(run_rounds("lookup", running, 8, play, {"": ("ms", "low")}))
    figures, absent = lines
    assert isinstance(figures, Figures) and isinstance(absent, Absent)
    assert figures.rounds == {"a": [*map(float, range(1, 9))], "b": [1.0], "c": [*map(float, range(1, 9))]}
    assert (absent.system, absent.reason) == ("b", "round 2: broken")
    assert len({order[at] for at in (0, 3, 6)} | {order[-1]}) > 1, "not always the same system first"
