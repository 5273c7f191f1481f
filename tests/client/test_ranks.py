"""Engines of different parallel degrees and layouts, with one process for each rank, share the pages of one arena."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from child_process import ChildProcess, all_answers
from eventually import eventually
from model_ranks import GROUPS, MODELS, PAGES, Group, serve_rank
from running_daemon import RunningDaemon

ONE, TWO, FOUR, EIGHT, STAGES = GROUPS
Engines = dict[Group, list[ChildProcess]]


@pytest.fixture(scope="module")
def engines(daemon: RunningDaemon) -> Iterator[Engines]:
    """Returns all ranks of all groups, attached."""
    with ExitStack() as stack:

        def start(group: Group, stage: int, rank: int) -> ChildProcess:
            life = partial(serve_rank, daemon.socket, group, stage, rank)
            return stack.enter_context(ChildProcess(life))

        started = {group: [start(group, stage, rank) for stage, rank in group.shards] for group in GROUPS}
        assert {rank.reported() for ranks in started.values() for rank in ranks} == {"attached"}
        yield started
    assert eventually(lambda: not [slot for slot in daemon.slots() if slot.pid])


@pytest.mark.parametrize("model", MODELS)
def test_pages_stored_by_one_degree_are_loaded_by_any_other(engines: Engines, model: str) -> None:
    for prompt, pipes in enumerate(engines.values()):
        for outcomes in all_answers(pipes, ("store", model, prompt)):
            assert outcomes == ["STORED"] * PAGES
    for pipes in engines.values():
        for prompt in range(len(engines)):
            assert all_answers(pipes, ("load", model, prompt)) == [(PAGES, 0)] * len(pipes)


def test_a_page_is_readable_when_the_last_rank_has_stored_its_part(engines: Engines) -> None:
    (reader,), (*ranks, last) = engines[ONE], engines[FOUR]
    prompt = 100
    assert all_answers(ranks, ("store", "gqa", prompt)) == [["STORED"] * PAGES] * 3
    assert all_answers([reader], ("load", "gqa", prompt))[0][0] == 0, "a quarter of each page is missing"
    all_answers([last], ("store", "gqa", prompt))
    assert all_answers([reader], ("load", "gqa", prompt)) == [(PAGES, 0)]


def test_engines_that_store_the_same_prompt_at_once_do_not_mix_their_parts(engines: Engines) -> None:
    both = [pipe for group in (FOUR, STAGES, TWO, EIGHT) for pipe in engines[group]]
    for prompt in range(200, 230):
        outcomes = {outcome for outcomes in all_answers(both, ("store", "gqa", prompt)) for outcome in outcomes}
        assert outcomes <= {"STORED", "PRESENT", "PENDING"}, outcomes
        for pages, wrong in all_answers(both + engines[ONE], ("load", "gqa", prompt)):
            assert (pages, wrong) == (PAGES, 0)
