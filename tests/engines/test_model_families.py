"""Runs vLLM's scheduler with the groups that vLLM plans for model families: hits, and groups without pages."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.v1.kv_cache_layout", reason="tested from 0.32 on")

from vllm.v1.kv_cache_interface import KVCacheConfig

from harnessed_models import assert_nothing_is_left, engine_of
from harnessed_scheduler import HarnessedEngine
from model_families import FAMILIES, planned_groups, scheduler_groups
from model_table import table
from pagetier.client import Client
from pagetier.client.engines.vllm.group_kinds import cached_groups
from running_daemon import RunningDaemon

PROMPT = 250


@pytest.mark.parametrize("family", FAMILIES)
def test_the_groups_with_pages_are_those_of_vllm(family: str) -> None:
    """Workers know all layers of a group, and the scheduler the first of them."""
    scheduler = scheduler_groups(family, 1)
    worker = KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=planned_groups(FAMILIES[family](4)))
    assert tuple(cached_groups(worker)) == tuple(cached_groups(scheduler)) == scheduler.prefix_cacheable_group_ids


def test_the_documentation_says_which_models_are_tested() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    assert "\n".join(table()) in text, "run tests/engines/model_table.py"


def grain(engine: HarnessedEngine) -> int:
    return math.lcm(*(group.kind.page_tokens for group in engine.groups))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_loads_its_own_pages_of_a_family(family: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(family, daemon, client)
    engine.submit(1, PROMPT)
    assert engine.run() == 0
    assert engine.scheduler.reset_prefix_cache()
    request = engine.submit(1, PROMPT)
    engine.step()
    hit = (PROMPT - 1) // grain(engine) * grain(engine)
    replayed = getattr(engine.scheduler, "prefix_replay_tokens", 0)
    assert request.num_computed_tokens == hit
    engine.run()
    assert request.num_output_tokens == 4 and bool(replayed) is (family == "DeepSeek V4.1")
    assert_nothing_is_left(engine, daemon)


def is_noticed(family: str, daemon: RunningDaemon, client: Client, **settings: Any) -> None:
    engine = engine_of(family, daemon, client, **settings)
    engine.submit(1, PROMPT)
    engine.run()
    engine.scheduler.reset_prefix_cache()
    engine.submit(1, PROMPT)
    with pytest.raises(AssertionError, match=r"is lost|is wrong"):
        engine.run()
    engine.scheduler.shutdown()


def several_groups() -> list[tuple[str, int]]:
    """Returns the families with several groups that have pages, and the numbers of these groups."""
    numbers = {family: scheduler_groups(family, 1).prefix_cacheable_group_ids for family in FAMILIES}
    return [(family, one) for family, known in numbers.items() if len(known) > 1 for one in known]


@pytest.mark.parametrize(("family", "forgotten"), several_groups())
def test_a_forgotten_group_is_noticed(family: str, forgotten: int, daemon: RunningDaemon, client: Client) -> None:
    is_noticed(family, daemon, client, forgotten=forgotten)


def test_a_replayed_window_that_is_named_as_loaded_is_noticed(
    daemon: RunningDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM would not compute it again."""
    from pagetier.client.engines.vllm import PagetierConnector

    groups = range(len(scheduler_groups("DeepSeek V4.1", 1).kv_cache_groups))
    monkeypatch.setattr(PagetierConnector, "get_loaded_kv_cache_group_ids", lambda *_: tuple(groups))
    is_noticed("DeepSeek V4.1", daemon, client)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_groups_with_pages_are_named_as_loaded(family: str, daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of(family, daemon, client)
    assert (
        engine.connector.get_loaded_kv_cache_group_ids(None) == scheduler_groups(family, 1).prefix_cacheable_group_ids
    )
    engine.scheduler.shutdown()
