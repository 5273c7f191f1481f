"""Aborted and preempted requests: nothing stays pinned, no page stays half written, and the next ones are right."""

from __future__ import annotations

import os
import signal

import pytest

from one_host import PAGE_TOKENS, ask, ask_anew, chosen, distance, exact, prompt, scene_of, texts

PROMPTS = [prompt(90 + at) for at in range(4)]
ROUNDING = 0.05


@pytest.mark.parametrize("name", chosen())
def test_aborted_requests(name: str) -> None:
    with scene_of(name) as scene, scene.engine() as engine:
        for steps in (0, 1, 2):  # prompts that are computed and stored
            engine.do("abort", prompts=[prompt(100 * steps + at) for at in range(4)], steps=steps)
        assert scene.is_clean()
        ask(engine, PROMPTS[0])
        own = ask(engine, PROMPTS[0])
        ask(engine, *PROMPTS)
        scene.settle()
        for steps in (0, 1, 2, 4):  # prompts that are loaded
            assert engine.do("reset")["reset"]
            engine.do("abort", prompts=PROMPTS, steps=steps)
        assert scene.is_clean()
        scene.to_disk_alone()
        assert engine.do("reset")["reset"]
        worker = scene.daemon.kill_worker(signal.SIGSTOP)
        try:  # prompts that are waited for
            engine.do("abort", prompts=PROMPTS, steps=0)
        finally:
            os.kill(worker, signal.SIGCONT)
        assert scene.is_clean()
        told = ask_anew(engine, PROMPTS[0])
        assert exact(told) == exact(own)
        assert (
            told["answers"][0]["cached"] == scene.hit() <= told["external"]
        )  # what the aborted ones hit is counted late


@pytest.mark.parametrize("name", chosen())
def test_preempted_requests(name: str) -> None:
    """Two prompts fit into vLLM's blocks, but not what is answered to both."""
    blocks = {"llama": 1 + 2 * 8 + 1}.get(name)
    if blocks is None:
        pytest.skip("how many blocks a prompt takes is known of one model")
    few = {"num_gpu_blocks_override": blocks, "max_model_len": 1536}
    with scene_of(name) as scene, scene.engine(engine=few) as engine:
        length = 8 * PAGE_TOKENS[name] - 20
        prompts = [asked[:length] for asked in (prompt(95, length), prompt(96, length))]
        alone = [ask(engine, asked, tokens=60) for asked in prompts]
        for told in (ask_anew(engine, *prompts, tokens=60), ask_anew(engine, *prompts, tokens=60)):
            assert texts(told) == [texts(one)[0] for one in alone]
            assert distance(told, {"answers": [one["answers"][0] for one in alone]}) < ROUNDING
        assert engine.do("metrics")["vllm:num_preemptions"] >= 2
        scene.settle()
        assert scene.is_clean()
