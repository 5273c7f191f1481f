"""Two daemons share pages through one store; whatever happens to the store, each call returns."""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from eventually import PATIENCE_S, eventually
from fleet_host import FleetHost, Pages, keys_of
from fleet_host import pages_of as random_pages
from fleet_questions import hit_in_fleet, located
from pagetier.client import Client, FullAttention, Keys
from pagetier.client.adapters import GroupKeys, LocatedHit
from running_daemon import RunningDaemon

PAGE = 100_000
ASK_S = 0.25
READ_S = 2.0  # the least limit of reads with which an answer to a question may take as long on a busy machine
HARNESS = Path(__file__).parents[2] / "harness"


def pages_of(count: int) -> Pages:
    return random_pages(count, PAGE)


class Host(FleetHost):
    """A host whose pages have one size."""

    def loaded(self, name: str, count: int) -> tuple[int, Pages]:
        """Returns how many pages were loaded, and the memory."""
        load = self.load(name, count, PAGE, PATIENCE_S)
        return load.pages, load.out


def found_in_fleet(client: Client, keys: Keys, pages: int) -> LocatedHit:
    """Returns the hit, which has this number of pages of the fleet."""
    hit = hit_in_fleet(client, keys, PATIENCE_S)
    assert hit is not None and hit.tokens == pages * keys.namespace.page_tokens
    return hit


def limited(ask: float, timeout: float) -> tuple[str, ...]:
    return "--set", f"remote.ask_timeout={ask}s", "--set", f"remote.timeout={timeout}s"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def limits() -> tuple[float, float]:
    """Returns how long the fleet may take to answer a question of the second host, and to read or write its pages."""
    return ASK_S, PATIENCE_S  # a page that is not written in time would never be


@pytest.fixture
def hosts(store: Path, limits: tuple[float, float], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Host, Host]]:
    monkeypatch.setenv("PYTHONPATH", str(HARNESS))
    with ExitStack() as stack:
        url = f"python://slow_folder_store:SlowFolder{store}"
        yield Host(url, stack, *limited(PATIENCE_S, PATIENCE_S)), Host(url, stack, *limited(*limits))


patient = pytest.mark.parametrize("limits", [(PATIENCE_S, PATIENCE_S)], ids=["patient"])
patient_questions = pytest.mark.parametrize("limits", [(READ_S, READ_S)], ids=["patient questions"])
patient_reads = pytest.mark.parametrize("limits", [(PATIENCE_S, 3600.0)], ids=["patient reads"])


def delay(store: Path, seconds: float) -> None:
    (store / "delay").write_text(str(seconds))


@patient
def test_pages_of_one_host_are_located_and_loaded_on_the_other(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    pages = pages_of(20)
    first.share("shared", pages)
    keys = keys_of("shared", 30)
    with second.client.match(keys) as match:
        assert (len(match), match.available_pages) == (0, 0)
    assert found_in_fleet(second.client, keys, 20).fleet_bytes == 20 * PAGE
    assert second.client.prefetch(found_in_fleet(second.client, keys[:5], 5)).wait(PATIENCE_S) == 5
    with second.client.match(keys) as match:
        assert len(match) == 5
    loaded, out = second.loaded("shared", 30)
    assert loaded == 20 and np.array_equal(out[:20], pages)
    assert eventually(lambda: second.report.read == 20), second.report
    assert second.report.read_bytes == 20 * PAGE and not second.report.written
    text = " ".join(second.daemon.pagetier("stats").stdout.split())
    assert "3 found, 0 late" in text, text
    assert first.daemon.findings() == [] and second.daemon.findings() == []


@patient
def test_fifty_questions_at_once_are_all_answered(hosts: tuple[Host, Host], store: Path) -> None:
    first, second = hosts
    first.share("fifty", pages_of(4))
    (store / "delay").write_text("0.02")
    locations = [located(second.client, keys_of("fifty", 4)) for _ in range(50)]
    assert all(location.wait(PATIENCE_S) for location in locations)
    assert not second.fresh_report().openings, "a fleet that is asked much has not failed"


@patient
def test_the_read_rate_is_that_of_the_store(hosts: tuple[Host, Host], store: Path) -> None:
    first, second = hosts
    for name in "abc":
        first.share(name, pages_of(1))
    (store / "delay-get").write_text("0.05")
    assert [second.loaded(name, 1)[0] for name in "abc"] == [1, 1, 1]
    assert eventually(lambda: second.report.read == 3), second.report
    assert 0 < second.report.rate < PAGE / 0.05, "a page takes 50 ms or longer"


@patient
def test_a_page_that_the_fleet_has_is_not_written_again(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    pages = pages_of(3)
    first.share("twice", pages)
    second.client.store(keys_of("twice", 3), pages)
    assert eventually(lambda: second.report.present == 3), second.report


@pytest.mark.parametrize(("questions", "pages"), [(4000, 256), (40, 4096)])
def test_a_client_that_drops_its_questions_is_served(hosts: tuple[Host, Host], questions: int, pages: int) -> None:
    """The daemon serves no client that reads none of its responses, which are more than a MiB here."""
    client, keys = hosts[0].client, keys_of("nowhere", pages)
    with client.find_groups([GroupKeys(FullAttention(keys.namespace.page_tokens), keys)]) as nothing:
        assert not client.locate(nothing).wait(PATIENCE_S)  # from now on the daemon answers at once
        for _ in range(questions):
            client.locate(nothing)
        assert not client.locate(nothing).wait(PATIENCE_S)
    assert client.store(keys_of("new", 3), pages_of(3)).stored == 3


def test_a_store_that_hangs_costs_three_short_waits_and_closes_again(hosts: tuple[Host, Host], store: Path) -> None:
    first, second = hosts
    pages = pages_of(4)
    first.share("far", pages)
    assert second.client.store(keys_of("near", 4), pages).stored == 4
    assert eventually(lambda: second.report.written == 4)
    delay(store, math.inf)
    for late in range(3):
        assert second.loaded("far", 4)[0] == 0
        assert eventually(lambda: second.report.late > late), second.report  # noqa: B023
    session = second.client.session
    assert session is not None and not session.asks_fleet
    for _ in range(50):
        assert second.loaded("far", 4)[0] == 0
        loaded, out = second.loaded("near", 4)
        assert loaded == 4 and np.array_equal(out, pages)
    second.client.store(keys_of("later", 1), pages_of(1))  # the report that has it has the last questions, too
    assert eventually(lambda: second.report.queued_bytes > 0), second.report
    assert second.report.breaker_open and second.report.openings == 1
    assert second.report.refused == 0, "nothing is asked while the breaker is open"
    assert 3 <= second.report.late < 20, "probes may be late, too, but not each of the 50 loads"
    (store / "delay").unlink()
    assert eventually(lambda: session.asks_fleet)
    assert eventually(lambda: second.loaded("far", 4)[0] == 4), "an answer may be late on a busy machine"
    loaded, out = second.loaded("far", 4)
    assert loaded == 4 and np.array_equal(out, pages)
    assert len(second.daemon.lines("the fleet cannot be used")) == 1


@patient_questions
def test_a_store_that_answers_questions_but_hangs_in_reads_is_given_up(hosts: tuple[Host, Host], store: Path) -> None:
    first, second = hosts
    first.share("hung", pages_of(1))
    (store / "delay-get").write_text("inf")
    session = second.client.session
    assert session is not None
    for reads in range(3):
        assert session.asks_fleet, f"the breaker opened after {reads} reads"
        assert second.loaded("hung", 1)[0] == 0
        assert eventually(lambda: second.report.unread > reads), second.report  # noqa: B023
    assert eventually(lambda: second.report.openings == 1), second.report  # a probe soon closes it
    assert eventually(lambda: not second.daemon.header().used_frames), "what was given up leaves no frames behind"
    (store / "delay-get").unlink()
    assert eventually(lambda: session.asks_fleet and second.loaded("hung", 1)[0] == 1)
    assert not second.report.breaker_open and second.report.openings == 1


@patient_reads
def test_a_store_that_hangs_while_it_is_read_does_not_prolong_a_prefetch(hosts: tuple[Host, Host], store: Path) -> None:
    first, second = hosts
    first.share("slow", pages_of(4))
    keys = keys_of("slow", 4)
    hit = found_in_fleet(second.client, keys, 4)
    delay(store, math.inf)
    prefetch = second.client.prefetch(hit, 0.3)
    assert prefetch.wait(PATIENCE_S) == 0 and prefetch.ready, "the daemon answered"
    assert second.daemon.header().open_entries == 4, "the pages are still being read"


def is_open_again(host: Host, restarts: int) -> bool:
    """Returns whether another worker is open. A worker that gets no core for long is replaced as well."""
    return host.report.restarts > restarts and host.report.standing == "open"


def test_a_worker_that_dies_or_stops_is_replaced(hosts: tuple[Host, Host]) -> None:
    first, second = hosts
    pages = pages_of(4)
    first.share("kept", pages)
    restarts = second.report.restarts
    os.kill(second.worker, signal.SIGKILL)
    assert second.client.store(keys_of("without a worker", 4), pages).stored == 4
    assert eventually(lambda: is_open_again(second, restarts))
    assert eventually(lambda: second.report.written == 4), "what was stored without a worker is written"
    restarts, late = second.report.restarts, second.report.late
    os.kill(second.worker, signal.SIGSTOP)
    assert second.loaded("kept", 4)[0] == 0
    assert eventually(lambda: second.report.late > late), second.report
    assert eventually(lambda: is_open_again(second, restarts))
    assert eventually(lambda: second.loaded("kept", 4)[0] == 4), "a new worker may be late"
    loaded, out = second.loaded("kept", 4)
    assert loaded == 4 and np.array_equal(out, pages)


@patient
def test_objects_that_are_gone_or_damaged_are_misses(hosts: tuple[Host, Host], store: Path) -> None:
    first, second = hosts
    first.share("lost", pages_of(4))
    keys = keys_of("lost", 4)
    hit = found_in_fleet(second.client, keys, 4)
    for path in [path for path in store.rglob("*") if path.is_file()]:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert second.client.prefetch(hit).wait(PATIENCE_S) == 0
    with second.client.match(keys) as match:
        assert len(match) == 0
    shutil.rmtree(store)
    assert second.loaded("lost", 4)[0] == 0 and second.daemon.findings() == []


def test_a_wrong_store_is_named_once_and_the_rest_works(tmp_path: Path) -> None:
    with RunningDaemon("16MiB", "64KiB", "--set", f"remote.url=file://{tmp_path}/missing") as daemon:
        assert eventually(lambda: daemon.snapshot().fleet.standing == "down")
        with daemon.client() as client:
            assert client.store(keys_of("own", 2), pages_of(2)).stored == 2
            assert client.session is not None and not client.session.asks_fleet
            assert located(client, keys_of("own", 2)).ready
