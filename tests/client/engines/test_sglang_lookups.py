"""The leases of SGLang's lookups: what a request has found is what it loads, or it is computed."""

from __future__ import annotations

from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_vllm_client import FakeClient
from pagetier.client import Client, RegisteredCache
from pagetier.client.engines.disk_reads import DiskReads
from pagetier.client.engines.fleet_reads import FleetReads
from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.sglang.engine.batch_times import BatchTimes
from pagetier.client.engines.sglang.engine.settings import LinkerSettings
from pagetier.client.engines.sglang.linker.lookups import Lookups
from pagetier.client.engines.sglang.linker.reading import Reading
from pagetier.client.engines.sglang.pools.engine_groups import EngineGroup
from pagetier.client.load_or_compute import LoadOrCompute
from pagetier.client.tier_speed import LoadTier
from running_daemon import RunningDaemon
from virtual_clock import VirtualClock

LAYERS, BLOCKS, TOKENS, PAGES = 2, 16, 16, 4
_HASHES = [sha256(b"%d" % page).hexdigest() for page in range(PAGES)]


def transfers(pages: int = PAGES) -> list[Any]:
    """Returns SGLang's transfer of the first pages of the prompt."""
    return [SimpleNamespace(name=SimpleNamespace(value="kv"), keys=_HASHES[:pages])]


def cache_of(client: Client) -> RegisteredCache:
    tensors = np.zeros((2, LAYERS, BLOCKS, TOKENS, 2, 8), np.uint16)
    return client.register([list(part) for part in tensors], layout="separate_blocks", model="test", page_tokens=TOKENS)


def lookups_of(client: Client, group: EngineGroup, lease: float) -> Lookups:
    return Lookups(client, [group], None, LinkerSettings(lease=lease), several_ranks=True)


def store(group: EngineGroup) -> None:
    keys = group.keys(bytes.fromhex("".join(_HASHES)))
    result = group.cache.store(keys, group.cache.slots_of(range(PAGES), PAGES), None)
    assert not result.refused, result


@pytest.mark.parametrize("stored_again", [False, True])
@pytest.mark.parametrize("lease", [0.0, 600.0])
def test_a_load_gets_the_pages_that_its_lookup_found(
    daemon: RunningDaemon, client: Client, lease: float, stored_again: bool
) -> None:
    """Also the first of them only, and after the lease has ended; pages that were stored again are other pages."""
    group = EngineGroup("kv", cache_of(client).group, {}, TOKENS)
    store(group)
    lookups = lookups_of(client, group, lease)
    assert lookups.lookup("waiting", transfers()) == [1, 2, 3, 4]
    lookups.expire()
    assert bool(daemon.slots()[0].pins) is bool(lease)
    if stored_again:
        daemon.flush()
        store(group)
    hit = lookups.take("waiting", transfers(2))
    assert (hit is not None) is bool(lease or not stored_again)
    if hit is not None:
        assert hit.pages == PAGES and all(len(match) == PAGES and match.pinned for match in hit.matches)
        hit.release()
    assert lookups.take("waiting", transfers()) is None, "it was taken"
    assert not daemon.slots()[0].pins


@pytest.mark.parametrize("forget", ["reset", "many others"])
def test_a_lease_that_has_ended_is_not_kept_for_ever(daemon: RunningDaemon, client: Client, forget: str) -> None:
    group = EngineGroup("kv", cache_of(client).group, {}, TOKENS)
    store(group)
    lookups = lookups_of(client, group, 0.0)
    for request in ["waiting", *(map(str, range(100)) if forget == "many others" else ())]:
        assert lookups.lookup(request, transfers())
    lookups.expire()
    if forget == "reset":
        lookups.release()
    assert lookups.take("waiting", transfers()) is None
    assert not daemon.slots()[0].pins


@pytest.mark.parametrize("reading_s", [0.5, 2.0])
def test_pages_on_disk_are_read_where_that_is_faster_than_computing(
    client: Client, standing_clock: VirtualClock, reading_s: float
) -> None:
    """And judged once for each request, however often SGLang asks while it waits."""
    tokens, computing_s = PAGES * TOKENS, 1.0
    rule, fake = LoadOrCompute(), FakeClient(0, tokens)
    fake.session.disk_bytes = 1
    for part in (tokens // 4, tokens // 2, tokens, 2 * tokens):
        rule.computed(part, 0.0, computing_s * part / tokens)
    for ago in (2.5, 1.0):
        sent = rule.sent(LoadTier.DISK, tokens, 10.0, standing_clock.now - ago)
        rule.ended(sent, 1.0, sent.sent_at + reading_s)
    there: Any = fake
    thread = PrefetchThread(there)
    fleet, settings = FleetReads(there, thread, rule), LinkerSettings()
    reading = Reading(DiskReads(thread, rule), fleet, BatchTimes(rule), settings)
    lookups = Lookups(
        there, [EngineGroup("kv", cache_of(client).group, {}, TOKENS)], reading, settings, several_ranks=False
    )
    for _ in range(300):  # a probe is due after each hundred that are not read
        assert lookups.lookup("one", transfers()) == []
    lookups.release()
    thread._thread.shutdown()  # after all that was given to it
    reads = reading_s < computing_s
    assert fake.prefetches == int(reads)
    assert [one.disk_slower_tokens > 0 for one in fake.counted] == [not reads]
