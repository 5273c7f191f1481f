"""Sends several different prompts at once: a page loaded for one request never reaches another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from one_host import Scene, ask, ask_after_reset, distance, exact, hybrid, prompt, scene_of, texts

TAIL = prompt(19, 6)
"""The common end of all prompts, so that an answer depends on the loaded pages and on little else."""

SHARED = prompt(20, 512)
PROMPTS = [[*prompt(21 + at, 768 + 256 * (at % 2)), *TAIL] for at in range(4)] + [
    [*prompt(31 + at, 1024, after=SHARED), *TAIL] for at in range(4)
]
ROUNDING = 0.05
"""The difference that another batch makes in vLLM itself: bfloat16 has steps of 1/64 at the size of these logits."""


class Batches:
    """An engine's results for all prompts at once: computed, from vLLM's own cache, and twice loaded from pagetier."""

    def __init__(self, scene: Scene, at_once: int) -> None:
        with scene.engine(engine={"max_num_seqs": at_once}) as engine:
            self.cold = ask(engine, *PROMPTS)
            self.own = ask(engine, *PROMPTS)
            scene.settle()
            self.outside = [ask_after_reset(engine, *PROMPTS), ask_after_reset(engine, *reversed(PROMPTS))]
            self.outside[1]["answers"].reverse()
            self.metrics = engine.do("metrics")
        self.hits = [scene.hit(len(asked)) for asked in PROMPTS]

    def is_loaded(self, result: dict[str, Any]) -> bool:
        """Returns whether all prompts were loaded as far as possible."""
        assert [answer["cached"] for answer in result["answers"]] == self.hits
        assert sum(self.hits) - 3 * len(SHARED) <= result["external"] <= sum(self.hits)
        return True

    def answers_differ(self) -> bool:
        """Returns whether the answers differ by more than rounding, so that state of another request is detected."""
        answers = [{"answers": [answer]} for answer in self.own["answers"]]
        for one, other in combinations(answers, 2):
            assert texts(one) != texts(other) or distance(one, other) > 2 * ROUNDING
        return True


@pytest.fixture(scope="module", params=hybrid())
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(request.param) as there:
        yield there


def test_one_by_one_all_answers_are_equal_bit_by_bit(scene: Scene) -> None:
    batches = Batches(scene, 1)
    assert batches.answers_differ()
    for outside in batches.outside:
        assert exact(outside) == exact(batches.own)
        assert batches.is_loaded(outside)
    assert batches.metrics["vllm:pagetier_failed_loads"] == 0


def test_in_one_batch_all_answers_are_equal_up_to_rounding(scene: Scene) -> None:
    batches = Batches(scene, 8)
    assert batches.answers_differ()
    for outside in batches.outside:
        assert texts(outside) == texts(batches.own)
        assert distance(outside, batches.own) < ROUNDING
        assert batches.is_loaded(outside)
    assert batches.metrics["vllm:pagetier_failed_loads"] == 0
