"""Several different prompts at once: what is loaded for one request never reaches another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from one_host import Scene, ask, ask_anew, distance, exact, hybrid, prompt, scene_of, texts

TAIL = prompt(19, 6)
"""Of all prompts: what an answer depends on is what is loaded, and hardly anything else."""

SHARED = prompt(20, 512)
PROMPTS = [[*prompt(21 + at, 768 + 256 * (at % 2)), *TAIL] for at in range(4)] + [
    [*prompt(31 + at, 1024, after=SHARED), *TAIL] for at in range(4)
]
ROUNDING = 0.05
"""What another batch around a request changes in vLLM itself: bfloat16 has steps of 1/64 where these logits are."""


class Batches:
    """What an engine answered to all prompts at once: at first, from vLLM's own cache, and from outside, twice."""

    def __init__(self, scene: Scene, at_once: int) -> None:
        with scene.engine(engine={"max_num_seqs": at_once}) as engine:
            self.cold = ask(engine, *PROMPTS)
            self.own = ask(engine, *PROMPTS)
            scene.settle()
            self.outside = [ask_anew(engine, *PROMPTS), ask_anew(engine, *reversed(PROMPTS))]
            self.outside[1]["answers"].reverse()
            self.metrics = engine.do("metrics")
        self.hits = [scene.hit(len(asked)) for asked in PROMPTS]

    def is_told_apart(self, told: dict[str, Any]) -> bool:
        """Whether all prompts were found, as far as they can be."""
        assert [answer["cached"] for answer in told["answers"]] == self.hits
        assert sum(self.hits) - 3 * len(SHARED) <= told["external"] <= sum(self.hits)
        return True

    def is_telling(self) -> bool:
        """Whether the answers are further apart than rounding could bring them: who loads another's state, is seen."""
        answers = [{"answers": [answer]} for answer in self.own["answers"]]
        for one, other in combinations(answers, 2):
            assert texts(one) != texts(other) or distance(one, other) > 2 * ROUNDING
        return True


@pytest.fixture(scope="module", params=hybrid())
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(request.param) as there:
        yield there


def test_computed_one_by_one_while_others_load(scene: Scene) -> None:
    told = Batches(scene, 1)
    assert told.is_telling()
    for outside in told.outside:
        assert exact(outside) == exact(told.own)
        assert told.is_told_apart(outside)
    assert told.metrics["vllm:pagetier_failed_loads"] == 0


def test_computed_together(scene: Scene) -> None:
    told = Batches(scene, 8)
    assert told.is_telling()
    for outside in told.outside:
        assert texts(outside) == texts(told.own)
        assert distance(outside, told.own) < ROUNDING
        assert told.is_told_apart(outside)
    assert told.metrics["vllm:pagetier_failed_loads"] == 0
