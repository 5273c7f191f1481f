"""Compares answers bit by bit with those from vLLM's own prefix cache, wherever the pages come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from disk_stores import settings_of
from one_host import (
    PAGE_TOKENS,
    REPORTS_FAILURES,
    TOKENS,
    Scene,
    ask,
    ask_after_reset,
    chosen,
    distance,
    exact,
    prompt,
    scene_of,
    texts,
)

PROMPT = prompt(1)


def branches(name: str) -> list[list[int]]:
    """Returns prompts that begin like the first one: one for each of its pages, followed by a few other tokens."""
    step = PAGE_TOKENS[name]
    return [[*PROMPT[:end], *prompt(end, 30)] for end in range(step, TOKENS, step)]


class Scenario:
    """The results of two engines, one after the other; the second keeps running. `own` is from vLLM's own cache."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        with scene.engine() as first:
            self.cold = ask(first, PROMPT)
            self.own = ask(first, PROMPT)
            self.own_branches = [ask(first, branch) for branch in branches(scene.name)]
            scene.settle()
            self.after_reset = ask_after_reset(first, PROMPT)
        self.engine = scene.engine().ready()
        self.in_a_new_process = ask(self.engine, PROMPT)

    def matches_own_cache(self, result: dict[str, Any]) -> bool:
        """Returns whether the longest possible prefix was loaded and the result equals that of vLLM's own cache."""
        assert exact(result) == exact(self.own)
        assert result["external"] == result["answers"][0]["cached"] == self.scene.hit()
        return True

    def tokens_from(self, tier: str) -> int:
        """Returns the tokens that the second engine has loaded from a tier."""
        return int(self.engine.do("metrics")[f"vllm:pagetier_{tier}_tokens"])


@pytest.fixture(scope="module", params=dict.fromkeys([*chosen(), *(["llama4"] if REPORTS_FAILURES else [])]))
def scenario(request: pytest.FixtureRequest) -> Iterator[Scenario]:
    with scene_of(request.param) as scene:
        there = Scenario(scene)
        try:
            yield there
            assert there.engine.do("metrics")["vllm:pagetier_failed_loads"] == 0
        finally:
            there.engine.stop()


def test_the_reference_is_from_vllms_own_cache(scenario: Scenario) -> None:
    assert scenario.cold["external"] == scenario.own["external"] == scenario.cold["answers"][0]["cached"] == 0
    assert scenario.own["answers"][0]["cached"] == scenario.scene.hit() >= 768
    assert len(set(texts(scenario.own)[0])) > 2


def test_answers_are_the_same_after_a_reset(scenario: Scenario) -> None:
    assert scenario.matches_own_cache(scenario.after_reset)


def test_answers_are_the_same_in_a_new_process(scenario: Scenario) -> None:
    assert scenario.matches_own_cache(scenario.in_a_new_process)
    assert texts(scenario.in_a_new_process) == texts(scenario.cold)
    assert distance(scenario.in_a_new_process, scenario.cold) <= distance(scenario.own, scenario.cold)


def test_a_prompt_that_branches_off_hits_as_much_as_it_shares(scenario: Scenario) -> None:
    """Each page is right by itself: the order in which attention finds pages does not matter."""
    result: dict[str, Any] = {}
    for branch, own in zip(branches(scenario.scene.name), scenario.own_branches, strict=True):
        result = ask_after_reset(scenario.engine, branch)
        assert result["external"] == result["answers"][0]["cached"] >= own["answers"][0]["cached"]
        assert texts(result) == texts(own)
        if result["external"] == own["answers"][0]["cached"]:
            assert exact(result) == exact(own)
    assert result["external"] == scenario.scene.hit()


def test_answers_are_the_same_in_a_second_engine(scenario: Scenario) -> None:
    with scenario.scene.engine() as second:
        assert scenario.matches_own_cache(ask(second, PROMPT))
        assert scenario.matches_own_cache(ask_after_reset(scenario.engine, PROMPT))
        assert scenario.matches_own_cache(ask_after_reset(second, PROMPT))


def test_answers_are_the_same_after_the_daemon_was_killed(scenario: Scenario) -> None:
    scenario.scene.daemon.kill()
    assert scenario.matches_own_cache(ask_after_reset(scenario.engine, PROMPT))
    scenario.scene.daemon.open()
    assert scenario.scene.attached(scenario.engine)
    assert scenario.matches_own_cache(ask_after_reset(scenario.engine, PROMPT))


def test_answers_are_the_same_from_disk(scenario: Scenario) -> None:
    scenario.scene.evict_to_disk()
    memory, disk = scenario.tokens_from("memory"), scenario.tokens_from("disk")
    assert scenario.matches_own_cache(ask_after_reset(scenario.engine, PROMPT))
    assert scenario.tokens_from("disk") - disk == scenario.scene.hit()
    assert scenario.matches_own_cache(ask_after_reset(scenario.engine, PROMPT))
    assert scenario.tokens_from("memory") - memory == scenario.scene.hit()


def test_answers_are_the_same_from_disk_after_a_restart(scenario: Scenario) -> None:
    assert scenario.scene.daemon.stop() == 0
    scenario.scene.daemon.open()
    assert scenario.scene.attached(scenario.engine)
    disk = scenario.tokens_from("disk")
    assert scenario.matches_own_cache(ask_after_reset(scenario.engine, PROMPT))
    assert scenario.tokens_from("disk") - disk == scenario.scene.hit()


def test_answers_are_the_same_from_a_compressed_disk(scenario: Scenario) -> None:
    """The next daemon finds all pages in memory, and begins an empty tier for them."""
    scenario.scene.daemon.kill()
    scenario.scene.daemon.open(*settings_of("compressed"))
    assert scenario.scene.attached(scenario.engine)
    assert scenario.matches_own_cache(ask_after_reset(scenario.engine, PROMPT))
    scenario.scene.evict_to_disk()
    assert scenario.scene.daemon.compresses
    disk = scenario.tokens_from("disk")
    assert scenario.matches_own_cache(ask_after_reset(scenario.engine, PROMPT))
    assert scenario.tokens_from("disk") - disk == scenario.scene.hit()
