"""Dynamo's own indexer, subscribed to a real engine, believes of 200 prompts exactly what a match would find."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from dynamo_router import BATCH, PAGE, PROMPTS, Router, events_to, routed
from eventually import PATIENCE_S, eventually
from indexer import note, require_indexer
from one_host import ask
from pagetier.shm._core import KEY_BYTES, EventsResult
from pagetier.shm.geometry import Geometry
from router import agree, wait_until_heard

require_indexer()


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with routed(tmp_path_factory.mktemp("router")) as router:
        yield router


def test_stores_evictions_loads_and_flushes_are_believed(router: Router) -> None:
    router.serve(*PROMPTS)
    router.scene.settle()
    memory, disk = router.totals()
    assert memory and disk, "some pages have left memory"
    router.scene.evict_to_disk()
    router.forget()
    memory, disk = router.totals()
    assert memory == 0 and disk >= sum(len(one) // PAGE for one in PROMPTS) * PAGE // 2
    router.serve(*PROMPTS[:20])
    assert router.totals()[0]
    router.scene.daemon.pagetier("flush", "--all", "--tier", "disk", "--yes")
    router.forget()
    memory, disk = router.totals()
    assert memory and not disk
    router.scene.daemon.pagetier("flush", "--all", "--yes")
    assert router.totals() == (0, 0)


@pytest.mark.parametrize("how", ["kill", "SIGUSR1", "stop"])
def test_restarts_of_the_daemon_are_believed(router: Router, how: str) -> None:
    daemon = router.scene.daemon
    router.serve(*PROMPTS[:60])
    router.scene.settle()
    assert router.totals()[0]
    assert daemon.process is not None
    if how == "kill":
        daemon.kill()
    elif how == "SIGUSR1":
        daemon.signal(signal.SIGUSR1)
        daemon.wait()
    else:
        daemon.stop()
    daemon.open()
    assert router.client.wait_attached(PATIENCE_S) and router.scene.attached(router.engine, clients=1)
    memory, disk = router.totals()
    assert memory or disk


def test_a_second_engine_announces_what_it_finds(router: Router) -> None:
    router.serve(*PROMPTS[:60])
    router.scene.settle()
    router.agree()
    _, settings = events_to(router.folder, 2)
    with router.scene.engine(engine=settings) as other:
        wait_until_heard(router.indexer, other, PAGE, "2")
        ask(other, *PROMPTS[:BATCH], tokens=1)
        believed = agree(router.indexer, router.truth, router.client, PROMPTS[:BATCH], "2")
        assert all(one["disk"] for one in believed)


def test_a_lost_ring_and_ten_thousand_evictions_under_load_are_believed(router: Router) -> None:
    """Another client stores so many pages that the engine's pages leave, while the engine serves prompts."""
    router.serve(*PROMPTS[:60])
    router.scene.settle()
    router.agree()
    before = router.scene.daemon.header().evicted
    churn = threading.Thread(target=router.churn, args=(before + 10_000,))
    churn.start()
    at = 0
    while churn.is_alive():
        router.serve(*PROMPTS[at : at + 10])
        at = (at + 10) % len(PROMPTS)
    router.scene.settle()
    promised = sum(one["disk"] - one["gpu"] for one in router.agree())
    note(f"evicted {router.scene.daemon.header().evicted - before}, promised {promised} tokens beyond the GPU")


def test_an_overrun_ring_and_a_full_disk_are_believed(router: Router) -> None:
    """The idle engine reads no event while others overwrite the ring, and the disk evicts its pages for theirs."""
    daemon, session = router.scene.daemon, router.client.session
    assert daemon.pagetier("resize", "--disk-size", "64MiB", "--yes").exit_code == 0
    daemon.wait_open()
    router.serve(*PROMPTS[:60])
    router.scene.settle()
    router.agree()
    assert session is not None and eventually(lambda: session.read_events().result == EventsResult.READ)
    ring = Geometry.of(daemon.header()).events_bytes // (KEY_BYTES + 8)
    router.churn(daemon.header().evicted + ring)
    assert session.read_events().result == EventsResult.MISSED
    while not daemon.header().disk_evicted:  # a slow disk loses pages before it is full
        router.churn(daemon.header().evicted + 500)
    assert daemon.pagetier("flush", "--to-disk").exit_code == 0  # nothing leaves the disk after the engine's step
    router.agree()
    note(f"the ring has {ring} places, the disk evicted {daemon.header().disk_evicted} pages")
    assert daemon.pagetier("flush", "--all", "--yes").exit_code == 0
