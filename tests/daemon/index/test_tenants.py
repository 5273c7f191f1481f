"""Tests quotas by tenant with a real daemon: minimum, maximum, refusals, reload, disk, and deaths of the daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_daemon import write_through
from eventually import PATIENCE_S, eventually
from metrics_scrape import scrape, value
from pagetier.client import Client, Keys, Namespace, StoreResult
from pagetier.daemon.stats.snapshot import TenantStats
from running_daemon import RunningDaemon
from seeded_random import chance

FRAME, FRAMES = 4 << 10, 256
QUOTA = '[quota]\n"alpha" = { arena = [0.25, 1] }\n"beta*" = { arena = [0, 0.5] }\n'
ALPHA, BETA, OTHERS = 0, 1, 2  # in the order of stats


def keys_of(model: str, start: int, pages: int = 1) -> Keys:
    space = Namespace(model=model, dtype="float32", page_tokens=1)
    return space.keys([start * 1000 + page for page in range(pages)])


def store(client: Client, model: str, start: int, pages: int = 1) -> StoreResult:
    return client.store(keys_of(model, start, pages), [bytes(FRAME)] * pages)


def found(client: Client, model: str, start: int, pages: int) -> int:
    with client.match(keys_of(model, start, pages)) as match:
        return len(match)


def tenants(daemon: RunningDaemon) -> list[TenantStats]:
    """Returns the tenants when the daemon has published what they have now."""

    def complete() -> bool:
        used = sum(tenant.memory.used for tenant in daemon.snapshot().tenants)
        return used == daemon.header().used_frames * FRAME

    assert eventually(complete), daemon.snapshot()
    return list(daemon.snapshot().tenants)


def frames(tenant: TenantStats) -> int:
    return tenant.memory.used // FRAME


def shares_become(daemon: RunningDaemon, *wanted: int) -> bool:
    """Returns whether the tenants have so many frames, as soon as the daemon has published it.

    The sum of a full arena is always the same, so it does not show whether numbers are old.
    """
    return eventually(lambda: [frames(tenant) for tenant in daemon.snapshot().tenants] == [*wanted])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    """Yields a daemon that evicts on demand only and in the order of LRU, with quotas."""
    flags = ("--set", "evict.policy=lru", "--set", f"metrics.listen={tmp_path / 'metrics'}")
    daemon = RunningDaemon(str(FRAMES * FRAME), str(FRAME), "--set", "evict.free=0", *flags)
    daemon.config.write_text(QUOTA)
    with daemon:
        yield daemon


def test_tenants_get_their_maximum_and_keep_their_minimum(daemon: RunningDaemon, tmp_path: Path) -> None:
    with daemon.client() as client:
        assert store(client, "alpha", 0, 64).stored == 64  # older than all others
        for start in range(1, 20):
            assert store(client, "beta-7b", start, 10).stored == 10
            assert frames(tenants(daemon)[BETA]) == min(10 * start, 128)
        for start in range(1, 40):
            assert store(client, "gamma", start, 10).stored == 10
        assert found(client, "alpha", 0, 64) == 64
        assert found(client, "beta-7b", 19, 10) == 0, "it has no minimum, and is older than the last pages of gamma"
        assert shares_become(daemon, 64, 0, FRAMES - 64), daemon.snapshot()
        alpha, beta, others = tenants(daemon)
    assert (alpha.quota, beta.quota, others.quota) == ("alpha", "beta*", "others")
    assert (alpha.memory.minimum, alpha.memory.share, beta.memory.maximum) == (0.25, 0.25, 0.5)
    assert not daemon.findings()
    for command in ("stats", "top"):
        (line,) = (line for line in daemon.pagetier(command).stdout.splitlines() if "25-100%" in line)
        assert "25% 25-100%" in " ".join(line.split())
    sample = scrape(tmp_path / "metrics")
    assert value(sample, "pagetier_quota_used_bytes", quota="alpha", tier="memory") == 64 * FRAME
    assert value(sample, "pagetier_quota_maximum_bytes", quota="beta*", tier="memory") == 128 * FRAME


def test_a_refused_store_names_the_quota(daemon: RunningDaemon, tmp_path: Path) -> None:
    with daemon.client() as client:
        store(client, "alpha", 0, 64)
        store(client, "beta", 0, 128)
        with client.match(keys_of("beta", 0, 128)) as match:
            assert len(match) == 128
            refused = store(client, "beta", 1)
            assert refused.refused == 1 and 'the quota "beta*" has a maximum of 50% of the arena' in refused.reason
        assert store(client, "beta", 1).stored == 1
        large = client.store(keys_of("beta", 2), [bytes(129 * FRAME)])
        assert large.refused == 1 and 'the quota "beta*"' in large.reason and "never fits" in large.reason
        for start in range(24):
            assert store(client, "gamma", start, 8).stored == 8
        with_all = [client.match(keys_of("gamma", start, 8)) for start in range(24)]
        assert sum(map(len, with_all)) == FRAMES - 64
        refused = store(client, "gamma", 99)
        assert refused.refused == 1 and 'the minimum of a quota protects them: "alpha"' in refused.reason
        for match in with_all:
            match.release()
        assert store(client, "gamma", 99).stored == 1
    assert value(scrape(tmp_path / "metrics"), "pagetier_quota_rejected_requests_total", quota="beta*") == 2


def test_a_minimum_may_take_all_entries_of_a_small_index() -> None:
    arena = (
        str(FRAMES * FRAME),
        str(FRAME),
        "--set",
        "evict.free=0",
        "--set",
        "index.entries=64",
    )
    with RunningDaemon(*arena, "--set", "quota=alpha: arena 0.5-1") as daemon, daemon.client() as client:
        assert store(client, "alpha", 0, 64).stored == 64
        refused = store(client, "beta", 0, 10)
        assert refused.refused == 10 and 'the minimum of a quota protects them: "alpha"' in refused.reason
        assert found(client, "alpha", 0, 64) == 64
    with RunningDaemon(*arena, "--set", "quota=alpha: arena 0.125-1") as daemon, daemon.client() as client:
        assert store(client, "alpha", 0, 64).stored == 64
        for start in range(10):
            assert store(client, "beta", start, 10).stored == 10
        assert shares_become(daemon, 32, 32), daemon.snapshot()
        assert not daemon.findings()


def test_a_store_that_the_disk_has_no_entry_for_leaves_memory_as_it_was() -> None:
    daemon = write_through("--set", "index.entries=40")
    daemon.config.write_text('quota = "alpha: disk 0.8-1"\n')
    with daemon, daemon.client() as client:
        for start in range(5):
            assert store(client, "alpha", start, 8).stored == 8
            daemon.until_written()
        assert daemon.header().free_entries == 0
        refused = store(client, "beta", 0, 2)
        assert refused.refused == 2 and 'the minimum of a quota protects them: "alpha"' in refused.reason
        assert daemon.header().pages == daemon.frames
        daemon.reload('quota = "alpha: disk 0.02-1"\n')
        assert store(client, "beta", 0, 2).stored == 2
        assert not daemon.findings()


def test_a_reload_changes_quotas(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        store(client, "alpha", 0, 64)
        store(client, "beta", 0, 100)
        reported = daemon.reload('[quota]\n"beta" = { arena = [0, 0.125] }\n')
        assert "quota = beta: arena 0-0.125" in reported
        assert eventually(lambda: frames(tenants(daemon)[0]) == 32), "its pages leave without a store"
        assert found(client, "alpha", 0, 64) == 64
        refused = daemon.reload('[quota]\n"beta" = { arena = [0.9, 1] }\n', "event=reload_refused")
        assert "add up to 0.9" in refused
        assert "quota = beta: arena 0-0.125" in daemon.pagetier("config").stdout
        for start in range(1, 30):
            assert store(client, "beta", start, 10).stored == 10
        assert [frames(tenant) for tenant in tenants(daemon)] == [32, 64]
        daemon.reload("")
        assert eventually(lambda: not daemon.snapshot().tenants)
    assert not daemon.findings()


def test_shares_hold_on_disk() -> None:
    with write_through("--set", "quota=alpha: disk 0.3-1; beta: disk 0-0.1") as daemon, daemon.client() as client:
        room = daemon.header().disk_frames
        for start in range(room // 20):
            assert store(client, "alpha" if start < room // 100 else "beta", start, 8).refused == 0
            daemon.until_written()
        alpha, beta, _ = tenants_on_disk = daemon.snapshot().tenants
        assert 0 < beta.disk.used <= 0.1 * room * daemon.header().frame_bytes, tenants_on_disk
        assert alpha.disk.used == room // 100 * 8 * daemon.header().frame_bytes
        assert not daemon.findings()


def until_granted(daemon: RunningDaemon, more: int) -> None:
    """Waits until so many more pages were granted."""
    granted = daemon.header().granted + more
    assert eventually(lambda: daemon.header().granted >= granted)


def test_counts_are_exact_after_deaths_of_the_daemon(daemon: RunningDaemon) -> None:
    draw, own, stopped = chance(), chance(), threading.Event()

    def store_all(client: Client) -> None:
        while not stopped.is_set():
            store(
                client, str(own.choice(["alpha", "beta", "gamma"])), int(own.integers(1000)), int(own.integers(1, 12))
            )

    with daemon.client() as client:
        thread = threading.Thread(target=store_all, args=[client])
        thread.start()
        for _ in range(4):
            until_granted(daemon, int(draw.integers(1, 200)))
            daemon.kill()
            daemon.start()
            assert not daemon.findings()
        stopped.set()
        thread.join()
        assert client.wait_attached(PATIENCE_S)
        assert eventually(lambda: not daemon.header().open_entries)
        in_index = dict.fromkeys(("alpha", "beta", "gamma"), 0)
        for space in daemon.snapshot().namespaces:
            in_index[space.label.split()[0]] += space.pages
        assert in_index["beta"] <= 128
        assert shares_become(daemon, *in_index.values()), daemon.snapshot()
