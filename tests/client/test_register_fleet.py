"""A registered cache loads what other hosts have stored, as Client.load() does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from eventually import PATIENCE_S
from fleet_host import PATIENT, FleetHost
from hybrid_engine import TOKENS, HybridEngine, same, tables
from pagetier.client import RegisteredCache
from pagetier.client.load_or_compute import Decision, LoadOrCompute, ProcessRule

LAYERS, BLOCKS, BLOCK, PAGE = 2, 64, 16, 32
PAGES = 4
PROMPT = list(range(PAGES * PAGE + 5))
WRITTEN, READ = np.arange(31, -1, -1), np.arange(63, 31, -1)


class Hosts(NamedTuple):
    first: FleetHost
    second: FleetHost


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    url = f"file://{tmp_path_factory.mktemp('store')}"
    with ExitStack() as stack:
        yield Hosts(FleetHost(url, stack, *PATIENT), FleetHost(url, stack, "--set", "remote.write=never", *PATIENT))


def registered(host: FleetHost, model: str, copies: str) -> tuple[RegisteredCache, npt.NDArray[np.int16]]:
    tensors = np.random.default_rng(7).integers(0, 2**15, (LAYERS, BLOCKS, 2, BLOCK, 4, 8), np.int16)
    cache = host.client.register(list(tensors), model=model, page_tokens=PAGE, layout="flashinfer")
    if copies == "device":
        cache.group._on_gpu = True
    return cache, tensors


@pytest.mark.parametrize("copies", ["host", "device"])
def test_a_cache_loads_the_pages_of_another_host(hosts: Hosts, copies: str) -> None:
    cache, _ = registered(hosts.first, copies, copies)
    assert cache.store(PROMPT, WRITTEN).stored == PAGES
    hosts.first.wait_shared(PAGES)
    cache, tensors = registered(hosts.second, copies, copies)
    expected = tensors[:, WRITTEN[: PAGES * PAGE // BLOCK]].copy()
    with cache.match(PROMPT) as match:
        assert (match.tokens, match.available_tokens) == (0, 0)
        assert cache.load(match, READ, timeout=0) == 0, "the fleet is not asked"
        loaded = cache.load(match, READ[: 2 * PAGE // BLOCK], timeout=PATIENCE_S)
        assert loaded == 2 * PAGE, "as far as the table has room"
    with cache.match(PROMPT) as match:
        assert match.tokens == 2 * PAGE
        assert cache.load(match, READ, timeout=PATIENCE_S) == PAGES * PAGE
    assert np.array_equal(tensors[:, READ[: PAGES * PAGE // BLOCK]], expected)


def test_groups_load_the_pages_of_another_host(hosts: Hosts) -> None:
    engine = HybridEngine(hosts.first.client, "hybrid")
    stored = engine.groups.store(engine.prompt, tables(0, 3))
    hosts.first.wait_shared(sum(result.stored for result in stored))
    other = HybridEngine(hosts.second.client, "hybrid")
    with other.groups.match(other.prompt) as hit:
        assert hit.tokens == 0
        assert other.groups.load(hit, tables(24, 3), timeout=0) == 0, "the fleet is not asked"
        assert other.groups.load(hit, tables(24, 3), timeout=PATIENCE_S) == TOKENS
    assert same(other, 0, 24, 3)


def test_groups_count_what_they_compute(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (HybridEngine(host.client, "slow hybrid") for host in hosts)
    stored = first.groups.store(first.prompt, tables(0, 3))
    hosts.first.wait_shared(sum(result.stored for result in stored))
    rule = LoadOrCompute()
    monkeypatch.setattr(rule, "decide", lambda *_, **__: Decision.COMPUTE)  # a probe might end before the load
    monkeypatch.setattr(ProcessRule, "rule", rule)
    before = hosts.second.daemon.snapshot().lookups
    with second.groups.match(second.prompt) as hit:
        assert second.groups.load(hit, tables(24, 3), timeout=PATIENCE_S) == 0
    lookups = hosts.second.daemon.snapshot().lookups
    assert lookups.remote_slower_tokens - before.remote_slower_tokens == TOKENS
    assert lookups.missed_tokens - before.missed_tokens == TOKENS and not lookups.disk_slower_tokens


@pytest.mark.parametrize("copies", ["host", "device"])
def test_a_cache_asks_no_fleet_for_what_it_computes_faster(hosts: Hosts, copies: str) -> None:
    model = f"slow {copies}"
    cache, _ = registered(hosts.first, model, copies)
    assert cache.store(PROMPT, WRITTEN).stored == PAGES
    hosts.first.wait_shared(PAGES)
    cache, _ = registered(hosts.second, model, copies)
    with cache.match(PROMPT) as match:
        assert cache.load(match, READ[: PAGE // BLOCK], timeout=PATIENCE_S) == PAGE, "nothing is known, so it is loaded"
    cache.computed(1e-9, range(PAGES * PAGE))
    with cache.match(PROMPT) as match:
        assert match.tokens == PAGE
        assert cache.load(match, READ, timeout=PATIENCE_S) == PAGE, "computing is faster"
