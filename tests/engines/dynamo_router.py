"""Dynamo's indexer beside a real engine, and prompts whose pages it should locate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eventually import PATIENCE_S
from indexer import Indexer, indexing
from one_host import PAGE_TOKENS, Scene, ask, prompt, scene_of
from pagetier.client import Client
from router import Truth, agree, forget_gpu, wait_until_heard
from running_daemon import namespace
from vllm_engine import VllmEngine

PAGE = PAGE_TOKENS["llama"]
SHARED = [prompt(900 + number, 2 * PAGE) for number in range(20)]
PROMPTS = [prompt(1000 + number, (4 + number % 3) * PAGE + 7, after=SHARED[number % 20]) for number in range(200)]
BATCH = 20
_FRAMES = 400  # the prompts have 640 pages
_GPU_BLOCKS = 160


class Router(NamedTuple):
    """A host with an engine, and the indexer that listens to it."""

    scene: Scene
    engine: VllmEngine
    indexer: Indexer
    truth: Truth
    client: Client
    folder: Path

    def serve(self, *prompts: list[int]) -> None:
        """Lets the engine answer prompts."""
        for first in range(0, len(prompts), BATCH):
            ask(self.engine, *prompts[first : first + BATCH], tokens=1)

    def forget(self, prompts: Sequence[list[int]] = PROMPTS) -> None:
        """Empties vLLM's own prefix cache, until the indexer has heard it of prompts."""
        forget_gpu(self.indexer, self.engine, prompts)

    def agree(self, prompts: Sequence[list[int]] = PROMPTS) -> list[dict[str, int]]:
        """Waits until the indexer believes what is true of prompts, while the engine does no step."""
        return agree(self.indexer, self.truth, self.client, prompts)

    def totals(self) -> tuple[int, int]:
        """Returns how many tokens the router believes to be in memory, and on disk after those."""
        believed = self.agree()
        return sum(one["cpu"] for one in believed), sum(one["disk"] - one["cpu"] for one in believed)

    def churn(self, evicted: int) -> None:
        """Stores pages of another namespace until so many pages were evicted."""
        page = np.zeros(1 << 16, np.uint8)
        others = namespace(salt="churn")
        with self.scene.daemon.client() as client:
            for number in range(1 << 30):
                if self.scene.daemon.header().evicted >= evicted:
                    return
                keys = others.keys(range(number << 12, (number << 12) + 16 * 16))
                client.store(keys, [page] * len(keys), timeout=PATIENCE_S)


def events_to(folder: Path, number: int) -> tuple[str, dict[str, Any]]:
    """Returns the endpoint of a worker, and the settings of its engine."""
    endpoint = f"ipc://{folder}/events-{number}"
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": f"{endpoint}-replay",
    }
    return endpoint, {"kv_events_config": events, "num_gpu_blocks_override": _GPU_BLOCKS}


@contextmanager
def routed(folder: Path, *flags: str, page: int = PAGE, frames: int = _FRAMES, **extra: Any) -> Iterator[Router]:
    """Runs a daemon with these flags, an engine with these settings of pagetier, and the indexer."""
    endpoint, settings = events_to(folder, 1)
    other, _ = events_to(folder, 2)
    with (
        scene_of("llama", *flags, frames=frames) as scene,
        indexing(page, {"1": endpoint, "2": other}, folder) as indexer,
        scene.engine(engine=settings | {"block_size": page}, extra=extra) as engine,
        scene.daemon.client() as client,
    ):
        wait_until_heard(indexer, engine, page)
        yield Router(scene, engine, indexer, Truth(scene, page), client, folder)
