"""Aborts and preempts requests: no pin and no unwritten page is left, and later answers are right."""

from __future__ import annotations

import os
import signal

import pytest

from one_host import ask, ask_after_reset, chosen, distance, exact, forget, prompt, scene_of, texts

PROMPTS = [prompt(90 + at) for at in range(4)]
TAIL = prompt(89, 6)
ANSWER = 160  # fills a page
ROUNDING = 0.05


@pytest.mark.parametrize("name", chosen())
def test_aborted_requests_leave_nothing(name: str) -> None:
    with scene_of(name) as scene, scene.engine() as engine:
        for steps in (0, 1, 2):  # prompts that are computed and stored
            engine.do("abort", prompts=[prompt(100 * steps + at) for at in range(4)], steps=steps)
        assert scene.is_clean()
        ask(engine, PROMPTS[0])
        own = ask(engine, PROMPTS[0])
        ask(engine, *PROMPTS)
        scene.settle()
        for steps in (0, 1, 2, 4):  # prompts that are loaded
            forget(engine)
            engine.do("abort", prompts=PROMPTS, steps=steps)
        assert scene.is_clean()
        scene.evict_to_disk()
        forget(engine)
        worker = scene.daemon.kill_worker(signal.SIGSTOP)
        try:  # prompts that wait for the disk
            engine.do("abort", prompts=PROMPTS, steps=0)
        finally:
            os.kill(worker, signal.SIGCONT)
        assert scene.is_clean()
        result = ask_after_reset(engine, PROMPTS[0])
        assert exact(result) == exact(own)
        assert (
            result["answers"][0]["cached"] == scene.hit() <= result["external"]
        )  # hits of aborted requests are counted late


def test_preempted_requests_get_the_right_answers() -> None:
    """Two prompts fit into the blocks, but their answers do not. What is stored later is in other blocks."""
    few = {"num_gpu_blocks_override": 1 + 2 * 8 + 1, "max_model_len": 1536}
    with scene_of("llama") as scene, scene.engine(engine=few) as engine:
        result = ask(engine, *PROMPTS[:2], tokens=ANSWER)
        assert engine.do("metrics")["vllm:num_preemptions"] >= 1
        scene.settle()
        assert scene.is_clean()
        further = [[*asked, *answer, *TAIL] for asked, answer in zip(PROMPTS, texts(result), strict=False)]
        outside = [ask_after_reset(engine, asked) for asked in further]
        for one in outside:
            assert one["external"] == one["answers"][0]["cached"] == scene.hit(len(PROMPTS[0]) + ANSWER)
        assert engine.do("reset", connector=True)["reset"]
        for one, asked in zip(outside, further, strict=True):
            cold = ask(engine, asked)
            assert cold["external"] == 0
            assert texts(one) == texts(cold)
            assert distance(one, cold) < ROUNDING
