"""Tests what a request that hits nothing costs vLLM's scheduler, in executed instructions of Python."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from counted_instructions import instructions_of
from fake_vllm_client import PAGE, request
from pagetier.client import Client
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.tier_reads import ReadLimits
from pagetier.client.groups import FullAttention
from running_daemon import namespace

TOKENS, TIMES = 41, 3
MOST: Final = 4300  # 4127 by CPython 3.11, and 4768 before
BLOCKS: Final = [*range(1, 2 + TOKENS // PAGE)]


def _step(one: Any) -> Any:
    """Returns vLLM's SchedulerOutput of a step that computes all of a prompt."""
    new = SimpleNamespace(req_id=one.request_id, block_ids=[BLOCKS], num_computed_tokens=0)
    return SimpleNamespace(
        total_num_scheduled_tokens=TOKENS,
        scheduled_new_reqs=[new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[], new_block_ids=[], resumed_req_ids=set(), num_computed_tokens=[]
        ),
        num_scheduled_tokens={one.request_id: TOKENS},
        scheduled_spec_decode_tokens={},
    )


def _compute(half: SchedulerHalf, one: Any) -> None:
    """Calls what vLLM calls for a prompt from its arrival to its end."""
    half.arrived(one)
    half.expect(one, 0)
    assert half.matched(one, 0) == 0
    half.allocated(one, [[SimpleNamespace(block_id=at, is_null=False) for at in BLOCKS]], 0)
    commands = half.build(_step(one))
    assert [store.pages for store in commands.stores] == [TOKENS // PAGE]
    one.num_computed_tokens = TOKENS
    half.finished(one, [BLOCKS])


def test_a_request_that_hits_nothing_costs_few_instructions(client: Client) -> None:
    half = SchedulerHalf(client, [PagedGroup(FullAttention(PAGE), namespace(PAGE), 1, True)], ReadLimits(2.0))
    requests = [request(TOKENS, str(number)) for number in range(TIMES)]
    for one in requests:
        one.num_prompt_tokens = TOKENS
    assert 0 < min(instructions_of(partial(_compute, half, one)) for one in requests) < MOST
    half.close()
