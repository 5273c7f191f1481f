"""A real engine whose blocks are small: its pages have several blocks, fill frames, and give the same answers."""

from __future__ import annotations

from typing import Any

import tiny_model
from disk_daemon import DiskDaemon
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


def all_reported(daemon: DiskDaemon) -> bool:
    """Returns whether the daemon's status, which is published now and then, has the writes of all frames on disk."""
    snapshot = daemon.snapshot()
    return snapshot.disk.device_bytes >= snapshot.tiers.disk.used
