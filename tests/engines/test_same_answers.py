"""The same answers, bit for bit, as vLLM gives with its own prefix cache: wherever the pages come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from one_host import PAGE_TOKENS, TOKENS, Scene, ask, ask_anew, chosen, distance, exact, prompt, scene_of, texts

PROMPT = prompt(1)


def branches(name: str) -> list[list[int]]:
    """Prompts that begin as the first one does: one for each of its pages, with a few tokens of their own behind it."""
    step = PAGE_TOKENS[name]
    return [[*PROMPT[:end], *prompt(end, 30)] for end in range(step, TOKENS, step)]


class Story:
    """What two engines said one after the other; the second goes on. `own`: from vLLM's own cache."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        with scene.engine() as first:
            self.cold = ask(first, PROMPT)
            self.own = ask(first, PROMPT)
            self.own_branches = [ask(first, branch) for branch in branches(scene.name)]
            scene.settle()
            self.after_reset = ask_anew(first, PROMPT)
        self.engine = scene.engine().ready()
        self.in_a_new_process = ask(self.engine, PROMPT)

    def is_told(self, told: dict[str, Any]) -> bool:
        """Whether this came from outside, to the last possible token, and is exactly what vLLM's own cache gives."""
        assert exact(told) == exact(self.own)
        assert told["external"] == told["answers"][0]["cached"] == self.scene.hit()
        return True

    def tokens_from(self, tier: str) -> int:
        """Counted by the second engine."""
        return int(self.engine.do("metrics")[f"vllm:pagetier_{tier}_tokens"])


@pytest.fixture(scope="module", params=chosen())
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    with scene_of(request.param) as scene:
        there = Story(scene)
        try:
            yield there
            assert there.engine.do("metrics")["vllm:pagetier_failed_loads"] == 0
        finally:
            there.engine.stop()


def test_vllms_own_cache_is_what_is_compared_with(story: Story) -> None:
    assert story.cold["external"] == story.own["external"] == story.cold["answers"][0]["cached"] == 0
    assert story.own["answers"][0]["cached"] == story.scene.hit() >= 768
    assert len(set(texts(story.own)[0])) > 2


def test_after_a_reset(story: Story) -> None:
    assert story.is_told(story.after_reset)


def test_in_a_new_process(story: Story) -> None:
    assert story.is_told(story.in_a_new_process)
    assert texts(story.in_a_new_process) == texts(story.cold)
    assert distance(story.in_a_new_process, story.cold) <= distance(story.own, story.cold)


def test_a_prompt_that_branches_off_hits_as_much_as_it_shares(story: Story) -> None:
    """Each page is the right one by itself: attention does not mind in which order it finds them."""
    told: dict[str, Any] = {}
    for branch, own in zip(branches(story.scene.name), story.own_branches, strict=True):
        told = ask_anew(story.engine, branch)
        assert told["external"] == told["answers"][0]["cached"] >= own["answers"][0]["cached"]
        assert texts(told) == texts(own)
        if told["external"] == own["answers"][0]["cached"]:
            assert exact(told) == exact(own)
    assert told["external"] == story.scene.hit()


def test_in_a_second_engine_beside_the_first(story: Story) -> None:
    with story.scene.engine() as second:
        assert story.is_told(ask(second, PROMPT))
        assert story.is_told(ask_anew(story.engine, PROMPT))
        assert story.is_told(ask_anew(second, PROMPT))


def test_after_the_daemon_was_killed_and_started_again(story: Story) -> None:
    story.scene.daemon.kill()
    assert story.is_told(ask_anew(story.engine, PROMPT))
    story.scene.daemon.open()
    assert story.scene.attached(1)
    assert story.is_told(ask_anew(story.engine, PROMPT))


def test_from_disk_alone(story: Story) -> None:
    story.scene.to_disk_alone()
    memory, disk = story.tokens_from("memory"), story.tokens_from("disk")
    assert story.is_told(ask_anew(story.engine, PROMPT))
    assert story.tokens_from("disk") - disk == story.scene.hit()
    assert story.is_told(ask_anew(story.engine, PROMPT))
    assert story.tokens_from("memory") - memory == story.scene.hit()


def test_from_disk_after_the_daemon_was_stopped_and_started_again(story: Story) -> None:
    assert story.scene.daemon.stop() == 0
    story.scene.daemon.open()
    assert story.scene.attached(1)
    disk = story.tokens_from("disk")
    assert story.is_told(ask_anew(story.engine, PROMPT))
    assert story.tokens_from("disk") - disk == story.scene.hit()
