"""Tests how many cache lines a match of a shared prefix touches, and when it asks for them: counts, without a clock."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from match_lines import CHURN, MOVE_NS, PAGES, Access, Kind, accesses, build, lines_of, modelled

LOCKS = 1

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, whose instrumentation is counted")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("match_lines"))


@pytest.fixture(scope="module", params=[0, CHURN])
def trace(program: Path, request: pytest.FixtureRequest) -> list[Access]:
    """Returns the accesses of a match and its release, in a new index and in one whose entries were used before."""
    return accesses(program, PAGES, request.param)


def locked(trace: list[Access]) -> list[int]:
    return [at for at, access in enumerate(trace) if access.kind is Kind.LOCKED]


def taken_ahead(trace: list[Access]) -> set[int]:
    return {access.line for access in trace if access.kind is Kind.PREFETCH_WRITE and access.segment == LOCKS}


def test_a_page_costs_two_lines_of_the_index_and_half_a_line_of_locks(trace: list[Access]) -> None:
    assert lines_of(trace, 0) <= 2 * PAGES + 1, "a bucket and an entry each, and the header"
    assert lines_of(trace, LOCKS) <= PAGES // 2 + 1, "the lock words of a prompt lie side by side"
    assert not any(access.kind.takes for access in trace if access.segment == 0)


def test_a_page_costs_two_locked_instructions(trace: list[Access]) -> None:
    assert len(locked(trace)) == 2 * PAGES


def test_lock_words_of_a_short_prompt_come_at_once(trace: list[Access]) -> None:
    """Other processors have them. One after the other they would cost eight times the way between two processors."""
    pins, releases = locked(trace)[:PAGES], locked(trace)[PAGES:]
    words = {trace[at].line for at in pins}
    assert taken_ahead(trace[: pins[0]]) >= words
    assert taken_ahead(trace[pins[-1] : releases[0]]) >= words == {trace[at].line for at in releases}


def test_one_page_is_not_prefetched(program: Path) -> None:
    """Its match would do the same twice."""
    assert not taken_ahead(accesses(program, 1, CHURN))


def test_pages_that_the_engine_has_pinned_stay_with_all_processors(program: Path) -> None:
    """Its requests overlap, so that one of them nearly always has a prompt that all begin with."""
    held = accesses(program, PAGES, CHURN, "held")
    assert not any(access.kind.takes for access in held)
    assert lines_of(held, 0) <= 3 * PAGES + 1, "a bucket, an entry and its history each, and the header"
    assert lines_of(held, LOCKS) <= PAGES // 2 + 1


def test_a_miss_reads_one_bucket_and_no_lock_word(program: Path) -> None:
    """Where nothing hits, a match costs next to nothing, however many keys it has."""
    missed = accesses(program, PAGES, CHURN, "miss")
    assert not any(access.segment == LOCKS or access.kind.takes for access in missed)
    assert lines_of(missed, 0) <= 3, "the header, a bucket, and the first entry for its namespace"


def test_lines_that_come_at_once_make_two_engines_faster(trace: list[Access]) -> None:
    """By the model of bench/match_lines.py, at 100 ns from one processor to another."""
    move = MOVE_NS["one_socket"]
    one_by_one = [access for access in trace if access.kind is not Kind.PREFETCH_WRITE]
    ratios = [modelled(each, 2, move).rate / modelled(each, 1, move).rate for each in (trace, one_by_one)]
    assert ratios[0] >= 1.6 and ratios[1] <= 1.4, ratios
    assert all(modelled(trace, engines, move).moved <= 2 * PAGES for engines in (2, 8))
