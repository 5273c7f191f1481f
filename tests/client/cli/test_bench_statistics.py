"""The prompts of `pagetier-bench serve`, and its intervals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pagetier.client.cli.bench.intervals import Bootstrap
from pagetier.client.cli.bench.report import BenchReport, text_of
from pagetier.client.cli.bench.workload import Chats, chats_needed, prompts_of_trace, warm_up_prompt
from pagetier.client.cli.replay.trace import Trace, read_trace

BLOCK = 64


def test_chats_share_a_beginning_and_return_once_with_more() -> None:
    prompts = Chats(5, 400).prompts()
    first, second = prompts[:5], prompts[5:]
    assert [prompt.returning for prompt in prompts] == [False] * 5 + [True] * 5
    assert {len(prompt.tokens) for prompt in first} == {300} and {len(prompt.tokens) for prompt in second} == {400}
    assert len({tuple(prompt.tokens[:100]) for prompt in prompts}) == 1
    assert len({tuple(prompt.tokens[100:110]) for prompt in first}) == 5
    assert [later.tokens[:300] for later in second] == [prompt.tokens for prompt in first]


def test_prompts_follow_from_the_seed() -> None:
    assert Chats(3, 128, seed=4).prompts() == Chats(3, 128, seed=4).prompts() != Chats(3, 128, seed=5).prompts()
    warm = warm_up_prompt(96, seed=4)
    assert all(prompt.tokens[:16] != warm[:16] for prompt in Chats(3, 128, seed=4).prompts())


@pytest.mark.parametrize(("cache", "tokens"), [(100_000, 8192), (1000, 64), (0, 8192), (3_000_000, 512)])
def test_more_tokens_than_the_cache_holds_are_between_a_chat_and_its_return(cache: int, tokens: int) -> None:
    count = chats_needed(cache, tokens)
    prompts = Chats(count, tokens).prompts() if count < 100 else []
    own = tokens * 3 // 4 - tokens // 4
    assert count >= 8 and (count - 1) * own > cache
    assert len(prompts) in (0, 2 * count)


def trace_of(folder: Path, *requests: tuple[int, list[int]]) -> Trace:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps({"input_length": n, "hash_ids": ids}) + "\n" for n, ids in requests))
    return read_trace(file, BLOCK)


def test_blocks_of_a_trace_have_the_same_tokens_wherever_they_occur(tmp_path: Path) -> None:
    requests = [(2 * BLOCK + 9, [7, 8, 9]), (3 * BLOCK, [7, 8, 2**40]), (5, [3]), (9 * BLOCK, [*range(20, 29)])]
    first, second = prompts_of_trace(trace_of(tmp_path, *requests), 4 * BLOCK, seed=0)
    assert (len(first.tokens), len(second.tokens)) == (2 * BLOCK, 3 * BLOCK), "without partial blocks and long requests"
    assert second.tokens[: 2 * BLOCK] == first.tokens and first.tokens[:BLOCK] != first.tokens[BLOCK:]
    assert (first.returning, second.returning) == (False, True)


def test_equal_values_have_an_interval_without_width() -> None:
    estimate = Bootstrap(0).median(np.full((3, 5), 7.0))
    assert (estimate.value, estimate.low, estimate.high) == (7, 7, 7)


def test_ratios_are_paired_by_request() -> None:
    base = np.random.default_rng(1).uniform(1, 1000, (3, 20))
    ratio = Bootstrap(0).median_ratio(base / 2, base)
    assert (ratio.value, ratio.low, ratio.high) == (0.5, 0.5, 0.5)
    rate = Bootstrap(0).ratio_of_rates(base / 2, base)
    assert (rate.value, rate.low, rate.high) == pytest.approx((2, 2, 2))


def test_an_interval_holds_the_truth_in_about_19_of_20_measurements() -> None:
    held = 0
    for seed in range(40):
        values = np.random.default_rng(seed).normal(10, 2, (1, 40))
        estimate = Bootstrap(seed).median(values)
        assert estimate.low <= estimate.value <= estimate.high
        held += estimate.low <= 10 <= estimate.high
    assert 33 <= held < 40


def test_rounds_that_differ_widen_the_interval() -> None:
    calm = np.random.default_rng(0).normal(10, 0.1, (4, 50))
    uneven = calm + np.array([[0.0], [1.0], [2.0], [3.0]])
    narrow, wide = Bootstrap(0).median(calm), Bootstrap(0).median(uneven)
    assert wide.high - wide.low > 10 * (narrow.high - narrow.low)


def test_a_seed_gives_the_same_interval_again() -> None:
    values = np.random.default_rng(0).normal(10, 2, (2, 9))
    assert Bootstrap(3).median(values) == Bootstrap(3).median(values) != Bootstrap(4).median(values)


@pytest.mark.parametrize(("rounds", "advises"), [(1, True), (2, False)])
def test_the_report_of_one_round_advises_more(rounds: int, advises: bool) -> None:
    report = BenchReport("m", rounds, requests=4, seed=0, rows=[], different_answers={}, evicted_pages=0)
    assert ("take --rounds 3 or more" in text_of(report)) == advises
