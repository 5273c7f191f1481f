"""Sends many prompts with one prefix at once: it is loaded once, and the answers are right."""

from __future__ import annotations

import pytest

from one_host import Scene, ask, ask_after_reset, distance, hybrid, prompt, scene_of, texts

PREFIX = prompt(120, 1024)
PROMPTS = [prompt(130 + at, 1024 + 7, after=PREFIX) for at in range(20)]
BRANCHES = [prompt(160 + at, 1536 + 7, after=PREFIX) for at in range(3)]
ROUNDING = 0.05
"""The difference that another batch makes in vLLM itself; see test_batches.py."""


@pytest.mark.parametrize("name", hybrid())
def test_a_prefix_that_many_prompts_share_is_loaded_once(name: str) -> None:
    with scene_of(name) as scene, scene.engine() as engine:
        ask(engine, PROMPTS[0])
        own = ask(engine, *PROMPTS)
        scene.settle()
        outside = ask_after_reset(engine, *PROMPTS)
        assert outside["external"] == scene.hit(len(PREFIX) + 1)
        assert [answer["cached"] for answer in outside["answers"]] == [scene.hit(len(PREFIX) + 1)] * len(PROMPTS)
        assert texts(outside) == texts(own)
        assert distance(outside, own) < ROUNDING
        scene.evict_to_disk()
        read = scene.daemon.header().disk_read
        from_disk = ask_after_reset(engine, *PROMPTS)
        assert from_disk["external"] == outside["external"]
        assert scene.daemon.header().disk_read - read == scene.daemon.header().pages, "a page was read twice"
        assert texts(from_disk) == texts(own)
        assert engine.do("metrics")["vllm:pagetier_failed_loads"] == 0


def test_of_prompts_that_branch_each_page_is_loaded_once() -> None:
    with scene_of("llama") as scene, scene.engine() as engine:
        own = ask(engine, *BRANCHES)
        scene.settle()
        outside = ask_after_reset(engine, *BRANCHES)
        assert outside["external"] == loaded_once(scene)
        assert texts(outside) == texts(own)
        assert distance(outside, own) < ROUNDING


def loaded_once(scene: Scene) -> int:
    """Returns the tokens of the prefix and of each branch."""
    return len(PREFIX) + len(BRANCHES) * (scene.hit(len(BRANCHES[0])) - len(PREFIX))
