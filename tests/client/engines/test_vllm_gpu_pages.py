"""Tests which pages of vLLM's own cache are stored in a step, and what cannot wait until it leaves that cache."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fake_vllm_config import group, vllm_config
from pagetier.client.engines.vllm.counters import ConnectorCounters
from pagetier.client.engines.vllm.gpu_pages import GpuPages, gpu_pages_of
from pagetier.client.engines.vllm.messages import StoreCommand
from vllm_caches import SlidingWindowSpec
from vllm_steps import IDLE, FreeBlocks


def command(name: str, blocks: Sequence[int]) -> StoreCommand:
    """Returns a command to store the first pages of a prompt in these blocks."""
    keys = b"".join(f"{name}{at}".encode().ljust(32) for at in range(len(blocks)))
    return StoreCommand(name, 0, 0, keys, tuple(blocks), "salt", before=b"")


def test_heads_are_stored_before_tails_in_runs_of_consecutive_pages() -> None:
    pages = GpuPages(FreeBlocks(8), 1, ConnectorCounters())
    assert not [*pages.remember([command("a", range(1, 9)), command("b", range(21, 26))])]
    one, other = pages.plan({}, IDLE, {6, 99})  # looks up 8, 7, 6 and 5: two steps of a block, and the two of this one
    keys = command("a", range(8)).keys
    assert (one.first, one.blocks, one.keys, one.before) == (4, (5,), keys[128:160], keys[96:128])
    assert (other.first, other.blocks, other.keys, other.before) == (6, (7, 8), keys[192:], keys[160:192])
    assert len(pages) == 4 + 5


class CountedBlocks(tuple[int, ...]):
    """Blocks that count how many of them were copied."""

    copied = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        CountedBlocks.copied += len(found) if isinstance(place, slice) else 0
        return found


def test_a_long_prompt_costs_no_more_for_each_page_than_a_short_one() -> None:
    pages = GpuPages(FreeBlocks(1000), 1, ConnectorCounters())
    whole = command("a", range(1000))
    assert not [*pages.remember([msgspec.structs.replace(whole, blocks=CountedBlocks(whole.blocks))])]
    assert CountedBlocks.copied == 1000


def test_pages_that_the_engine_does_not_cache_are_stored_at_once() -> None:
    """They would be lost at the end of their request."""
    pages = GpuPages(FreeBlocks(8, unhashed=[3, 4]), 1, ConnectorCounters())
    whole = command("a", range(1, 5))
    (rest,) = pages.remember([whole])
    assert (rest.first, rest.blocks, rest.keys) == (2, (3, 4), whole.keys[64:])
    assert rest.before == whole.keys[32:64]
    assert len(pages) == 2
    assert [*pages.remember([command("b", [4, 1])])] == [command("b", [4, 1])]


def test_steps_that_take_no_blocks_look_at_none() -> None:
    blocks = FreeBlocks(1000)
    pages = GpuPages(blocks, 10, ConnectorCounters())
    for _ in range(100):
        assert not [*pages.plan({}, IDLE, frozenset())]
    assert blocks.looked_up == 0
    for block in range(100):
        assert not [*pages.plan({}, IDLE, {block})]
    assert blocks.looked_up <= 10 * (2 * 10 + 2), "a walk happens once for the blocks of a step"


KINDS: dict[str, Any] = {
    "supported": ({}, "both", group(), True, ""),
    "windows": ({}, "both", SimpleNamespace(kv_cache_spec=SlidingWindowSpec(16, 32)), True, "full attention"),
    "events": ({"kv_events_config": SimpleNamespace(enable_kv_cache_events=True)}, "both", group(), True, "events"),
    "prefill only": ({}, "producer", group(), True, "kv_role"),
    "no pool": ({}, "both", group(), False, "does not show its free blocks"),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_cannot_wait_is_stored_at_once_with_a_reason(name: str, caplog: pytest.LogCaptureFixture) -> None:
    more, role, one, shows, reason = KINDS[name]
    config = vllm_config()
    vars(config).update(more)
    config.kv_transfer_config = SimpleNamespace(is_kv_producer=True, is_kv_consumer=role == "both")
    config.scheduler_config = SimpleNamespace(max_num_batched_tokens=64)
    queue = SimpleNamespace(fake_free_list_head=SimpleNamespace(next_free_block=None))
    pool = SimpleNamespace(blocks=[], free_block_queue=queue if shows else None)
    made = gpu_pages_of(config, SimpleNamespace(kv_cache_groups=[one]), pool, ConnectorCounters())
    assert (made is None) is bool(reason)
    assert len(caplog.records) == bool(reason)
    assert reason in caplog.text
