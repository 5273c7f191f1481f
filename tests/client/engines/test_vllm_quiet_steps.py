"""Tests that a step which completes no page is planned without its requests, and that no page is left out by that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import pytest

from counted_instructions import instructions_of
from pagetier.client.engines.vllm.messages import NO_COMMANDS, StepCommands
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.engines.vllm.steps import NextStep, QuietSteps
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from running_daemon import namespace
from vllm_steps import PAGE, hashed

GROUPS: Final = (
    (FullAttention(PAGE),),
    (FullAttention(PAGE), SlidingWindow(PAGE, 3 * PAGE)),
    (FullAttention(2 * PAGE), Recurrent(PAGE)),
)
PROMPT: Final = 5
MOST: Final = 200  # instructions of a quiet step; each request took 40 more


class Engine:
    """A scheduler of several requests, with a block for each four tokens, as vLLM has them.

    Args:
        kinds: The groups of the model.
        volatile: See PagedGroup.
    """

    def __init__(self, kinds: Sequence[Group], volatile: int = 0) -> None:
        self.groups = [
            PagedGroup(kind, namespace(kind.page_tokens, group=str(at)), kind.page_tokens // PAGE, True, volatile)
            for at, kind in enumerate(kinds)
        ]
        self.tracked: dict[str, RequestState] = {}
        self.next = NextStep(self.tracked)

    def begin(self, name: str) -> None:
        """Adds a request, which the next step computes."""
        request = SimpleNamespace(
            request_id=name, num_tokens=PROMPT, num_prompt_tokens=PROMPT, num_computed_tokens=0, block_hashes=[]
        )
        self.tracked[name] = RequestState(request, self.groups)
        self.next.changes()

    def step(self, tokens: dict[str, int], drafts: int = 0, kept: bool = True) -> StepCommands:
        """Builds a step in which each of the requests computes so many tokens.

        Args:
            tokens: The tokens of each request; a first step computes its whole prompt.
            drafts: How many of the tokens are drafts.
            kept: Whether the drafts are accepted.
        """
        scheduled = {name: tokens[name] if self._computed(name) else PROMPT for name in tokens}
        new = [name for name in scheduled if not self._computed(name)]
        for name, count in scheduled.items():
            request = self.tracked[name].request
            request.num_tokens = max(request.num_tokens, request.num_computed_tokens + count)
            request.block_hashes = hashed(request.num_tokens // PAGE, name.encode())
        old = [name for name in scheduled if name not in new]
        guessed = {name: [0] * drafts for name in old if drafts and scheduled[name] > drafts}
        output = SimpleNamespace(
            total_num_scheduled_tokens=sum(scheduled.values()),
            num_scheduled_tokens=scheduled,
            scheduled_new_reqs=[self._new(name) for name in new],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=old, new_block_ids=[self._more(name, scheduled[name]) for name in old], resumed_req_ids=set()
            ),
            scheduled_spec_decode_tokens=guessed,
        )
        commands = self.next.build(output, None)
        for name, count in scheduled.items():
            self.tracked[name].request.num_computed_tokens += count - (0 if kept else len(guessed.get(name, ())))
        return commands

    def _computed(self, name: str) -> int:
        return int(self.tracked[name].request.num_computed_tokens)

    def _new(self, name: str) -> Any:
        return SimpleNamespace(req_id=name, block_ids=self._blocks(name, 0, PROMPT), num_computed_tokens=0)

    def _more(self, name: str, tokens: int) -> Any:
        have = len(self.tracked[name].tables[0]) * PAGE
        needs = self._computed(name) + tokens
        return self._blocks(name, have, needs) if needs > have else None

    def _blocks(self, name: str, have: int, needs: int) -> tuple[list[int], ...]:
        first = 1000 * (1 + int(name))
        return tuple([first + at for at in range(have // PAGE, -(-needs // PAGE))] for _ in self.groups)


def _never(_self: QuietSteps, _output: Any) -> bool:
    return False


def _commands(kinds: Sequence[Group], seed: int, volatile: int, stages: int) -> list[StepCommands]:
    """Returns the commands of some random steps, in which the batches of so many stages mostly take turns."""
    chance, engine, found = random.Random(seed), Engine(kinds, volatile), []
    for number in range(200):
        if number < 2 or chance.random() < 0.02:
            engine.begin(str(number))
        turn = chance.randrange(stages) if chance.random() < 0.03 else number % stages
        mixed = chance.random() < 0.02
        names = [name for name in engine.tracked if mixed or (int(name) % stages == turn and chance.random() < 0.97)]
        drafts = 2 if chance.random() < 0.03 else 0
        found.append(engine.step(dict.fromkeys(names, 1 + drafts), drafts, kept=chance.random() < 0.5))
        if chance.random() < 0.01 and len(engine.tracked) > 1:
            del engine.tracked[chance.choice(sorted(engine.tracked))]
    return found


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("volatile", [0, 1])
@pytest.mark.parametrize("kinds", GROUPS, ids=str)
def test_quiet_steps_send_what_planned_ones_would(kinds: Sequence[Group], volatile: int, stages: int) -> None:
    seed = random.randrange(1 << 32)
    quiet = 0
    take = QuietSteps.take

    def counted(steps: QuietSteps, output: Any) -> bool:
        nonlocal quiet
        quiet += (taken := take(steps, output))
        return taken

    with mock.patch.object(QuietSteps, "take", counted):
        commands = _commands(kinds, seed, volatile, stages)
    with mock.patch.object(QuietSteps, "take", _never):
        assert commands == _commands(kinds, seed, volatile, stages), f"seed {seed}"
    assert quiet > 10 and any(one.stores for one in commands), f"too few steps, seed {seed}"


def _quiet_step(requests: int) -> int:
    """Returns the instructions of a step that completes no page and gives no block."""
    engine = Engine((FullAttention(PAGE),))
    for number in range(requests):
        engine.begin(str(number))
    names = dict.fromkeys(engine.tracked, 1)
    engine.step(names)
    cached = SimpleNamespace(req_ids=[*names], new_block_ids=[None] * requests, resumed_req_ids=set())
    output = SimpleNamespace(
        total_num_scheduled_tokens=requests,
        num_scheduled_tokens=names,
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        scheduled_spec_decode_tokens={},
    )
    sent: list[StepCommands] = []
    executed = instructions_of(lambda: sent.append(engine.next.build(output, None)))
    assert sent == [NO_COMMANDS] and sent[0] is NO_COMMANDS
    return executed


def test_a_quiet_step_costs_the_same_for_one_request_and_for_many() -> None:
    assert _quiet_step(1) == _quiet_step(64) < MOST


@pytest.mark.parametrize("stages", [2, 8])
def test_the_batches_of_a_pipeline_are_quiet_too(stages: int) -> None:
    engine = Engine((FullAttention(16 * PAGE),))
    batches = [{str(stage): 1} for stage in range(stages)]
    for batch in batches:
        engine.begin(*batch)
    for batch in batches:
        engine.step(batch)
    with mock.patch.object(engine.next, "_planned", side_effect=engine.next._planned) as planned:
        for _ in range(10):
            for batch in batches:
                engine.step(batch)
    assert not planned.call_count


def test_batches_of_requests_that_have_ended_are_forgotten() -> None:
    engine = Engine((FullAttention(16 * PAGE),))
    for number in range(50):
        engine.begin(str(number))
    for name in engine.tracked:
        engine.step({name: 1})
    assert len(engine.next._quiet._batches) == 8


def test_a_request_that_changes_ends_the_quiet_steps() -> None:
    engine = Engine((FullAttention(PAGE),))
    engine.begin("1")
    engine.step({"1": 1})
    engine.next.changes()
    with mock.patch.object(engine.next, "_planned", side_effect=engine.next._planned) as planned:
        engine.step({"1": 1})
        assert planned.call_count == 1
        engine.step({"1": 1})
        assert planned.call_count == 1


def test_a_step_with_states_to_store_is_planned() -> None:
    """With vLLM 0.32 each step has this field, mostly without any state."""
    engine = Engine((FullAttention(PAGE),))
    engine.begin("1")
    engine.step({"1": 1})
    cached = SimpleNamespace(req_ids=["1"], new_block_ids=[None], resumed_req_ids=set())
    for offers, quiet in (({}, True), ({"1": [(0, 7, PAGE)]}, False)):
        output = SimpleNamespace(
            total_num_scheduled_tokens=1,
            num_scheduled_tokens={"1": 1},
            scheduled_new_reqs=[],
            scheduled_cached_reqs=cached,
            kv_connector_block_state=SimpleNamespace(boundary_state_offloads=offers),
        )
        assert engine.next._quiet.take(output) is quiet
