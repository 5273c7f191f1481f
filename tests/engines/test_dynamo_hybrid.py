"""Dynamo's indexer follows a model with groups: it reads the group with full attention, whatever its number."""

from __future__ import annotations

from pathlib import Path

import pytest

from indexer import indexing, require_indexer
from one_host import PAGE_TOKENS, ask, hybrid, prompt, scene_of
from router import Truth, agree, forget_gpu, wait_until_heard

require_indexer()


@pytest.mark.parametrize("model", [name for name in hybrid() if name != "llama"])
def test_the_group_with_full_attention_is_believed(model: str, tmp_path: Path) -> None:
    page, endpoint = PAGE_TOKENS[model], f"ipc://{tmp_path}/events"
    prompts = [prompt(number, (2 + number % 2) * page + 7) for number in range(8)]
    settings = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    with (
        scene_of(model) as scene,
        indexing(page, {"1": endpoint}, tmp_path) as indexer,
        scene.engine(engine={"kv_events_config": settings}) as engine,
        scene.daemon.client() as client,
    ):
        truth = Truth(scene, page)
        wait_until_heard(indexer, engine, page)
        ask(engine, *prompts, tokens=1)
        scene.settle()
        ask(engine, prompt(99, 20), tokens=1)
        believed = agree(indexer, truth, client, prompts)
        assert all(one["cpu"] for one in believed), believed
        scene.evict_to_disk()
        forget_gpu(indexer, engine, prompts)
        believed = agree(indexer, truth, client, prompts)
        assert all(one["disk"] > one["cpu"] == 0 for one in believed), believed
