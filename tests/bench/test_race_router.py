"""Tests of the contest of four vLLM engines, without engines: its requests, and what its figures mean."""

from __future__ import annotations

from itertools import pairwise

from race.contests.router import (
    BLOCKS,
    CHATS,
    ENGINES,
    FIRST,
    MEMORY,
    MORE,
    TURNS,
    ChatTurn,
    RouterFigures,
    TurnResult,
    turns_of_chats,
)
from race.results import Figures
from serving.compare import FRAME_BYTES
from serving.engine import BLOCK


def test_each_turn_of_a_chat_continues_its_turn_before() -> None:
    turns = [[one.prompt for one in turn] for turn in turns_of_chats()]
    assert [len(prompts) for prompts in turns] == [CHATS] * TURNS
    for before, after in pairwise(turns):
        assert all(len(prompt) == len(before[0]) + MORE for prompt in after)
        assert sorted(prompt[: len(before[0])] for prompt in after) == sorted(before)
    assert turns_of_chats() == turns_of_chats(), "every system gets the same prompts"


def test_all_chats_fit_into_the_memory_that_is_shared_and_into_no_engine() -> None:
    longest = FIRST + MORE * (TURNS - 1)
    needed = CHATS * longest // BLOCK * FRAME_BYTES
    assert needed < 0.8 * MEMORY, "LMCache begins to evict at 80 %"
    assert needed > MEMORY // ENGINES and needed > BLOCKS * FRAME_BYTES


def test_first_turns_find_nothing_and_are_shown_apart() -> None:
    seen = [
        TurnResult(ChatTurn(turn, [7] * 100 * (turn + 1)), 50 * turn, 1000.0 * turn + 1) for turn in (0, 0, 1, 1, 2)
    ]
    figures = RouterFigures()
    figures.add("pagetier", seen, [300.0, 301.0, 302.0])
    rounds = {line.case: line.rounds["pagetier"] for line in figures.lines() if isinstance(line, Figures)}
    assert list(rounds.values()) == [[1.0, 1.0], [1001.0, 1001.0, 2001.0], [25.0, 100 / 3], [300.0, 301.0, 302.0]]
