"""A real engine whose blocks are small: its pages have several blocks, fill frames, and give the same answers."""

from __future__ import annotations

from typing import Any

import pytest

import tiny_model
from disk_daemon import FRAME, DiskDaemon
from eventually import eventually
from one_host import MODELS, ask, ask_after_reset, exact, prompt, scene_of

BLOCK = 32
PAGE = 5 * BLOCK
"""Five blocks of 384 KiB fill 94 % of two frames."""

HIT = 6 * PAGE
PROMPT = prompt(1, HIT + BLOCK // 2)
POOL = 60
"""Blocks of vLLM's own cache, one of which it never uses."""

KEPT = 3 * PAGE + 3 * BLOCK
OTHERS = prompt(2, (POOL - 1 - KEPT // BLOCK) * BLOCK - 10)
"""A prompt that takes as many blocks as lets vLLM keep three pages of the first prompt, and three blocks more."""


def test_answers_are_the_same_and_frames_are_full() -> None:
    with scene_of("llama", "--set=arena.frame_size=1MiB") as scene:
        scene.model = tiny_model.make("llama", MODELS, num_hidden_layers=6, head_dim=128, num_key_value_heads=4)
        with scene.engine(
            engine={"block_size": BLOCK, "num_gpu_blocks_override": POOL, "max_model_len": 1536}
        ) as engine:
            cold, own = ask(engine, PROMPT), ask(engine, PROMPT)
            assert cold["external"] == own["external"] == 0 and own["answers"][0]["cached"] == HIT
            scene.settle()
            assert f"pages of {PAGE} tokens (1920 KiB)" in engine.log_tail()

            def is_same(result: dict[str, Any], external: int) -> bool:
                return exact(result) == exact(own) and result["external"] == external

            assert is_same(ask_after_reset(engine, PROMPT), HIT)
            ask(engine, OTHERS)
            assert is_same(ask(engine, PROMPT), HIT - KEPT), "vLLM has the begin of a page"
            scene.evict_to_disk()
            assert is_same(ask_after_reset(engine, PROMPT), HIT)
            assert engine.do("metrics")["vllm:pagetier_failed_loads"] == 0
            assert eventually(lambda: all_reported(scene.daemon)), scene.daemon.reported()
            snapshot = scene.daemon.snapshot()
            memory, disk = snapshot.tiers.memory, snapshot.tiers.disk
            assert memory.pages == HIT // PAGE and memory.bytes >= 0.88 * memory.used
            assert disk.pages >= memory.pages and snapshot.disk.device_bytes <= 1.1 * disk.bytes_in


@pytest.mark.parametrize(("block", "layers", "blocks"), [(64, 6, 4), (256, 5, 2)])
def test_a_full_arena_holds_pages_of_larger_blocks(block: int, layers: int, blocks: int) -> None:
    """A block fills three quarters of a frame, or five sixths of three; the arena has room for 8 pages of 12."""
    page, page_bytes = blocks * block, blocks * block * layers * 2048
    hit, flags = 3 * page, ("--set=arena.frame_size=1MiB", "--set=disk.write=through", "--set=evict.policy=lru")
    prompts = [prompt(number, hit + block // 2) for number in range(4)]
    with scene_of("llama", *flags, frames=8 * page_bytes // FRAME) as scene:
        scene.model = tiny_model.make("llama", MODELS, num_hidden_layers=layers, head_dim=128, num_key_value_heads=4)
        sizes = {"block_size": block, "num_gpu_blocks_override": 3072 // block, "max_model_len": 2048}
        with scene.engine(engine=sizes) as engine:
            own = []
            for each in prompts:
                ask(engine, each)
                own.append(ask(engine, each))
                scene.settle()
                assert not scene.daemon.save().trouble
            assert all(one["external"] == 0 and one["answers"][0]["cached"] == hit for one in own)
            assert f"pages of {page} tokens ({page_bytes >> 10} KiB)" in engine.log_tail()
            for each, answer in zip(prompts, own, strict=True):
                again = ask_after_reset(engine, each)
                assert again["external"] == hit and exact(again) == exact(answer)
            scene.settle()
            assert eventually(lambda: all_reported(scene.daemon)), scene.daemon.reported()
            snapshot = scene.daemon.snapshot()
            memory, disk = snapshot.tiers.memory, snapshot.tiers.disk
            assert memory.evictions > 0 and memory.used > memory.cap / 2, "the arena was full"
            assert memory.bytes >= 0.88 * memory.used and memory.bytes == memory.pages * page_bytes
            assert disk.pages == 12 and snapshot.disk.device_bytes <= 1.1 * disk.bytes_in


def all_reported(daemon: DiskDaemon) -> bool:
    """Returns whether the daemon's status, which is published now and then, has the writes of all frames on disk."""
    snapshot = daemon.snapshot()
    return snapshot.disk.device_bytes >= snapshot.tiers.disk.used
