"""Tests the Prometheus endpoint of a real daemon: its numbers, its requests and its addresses."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.metrics_core import Metric

from daemon_turns import Turns
from disk_daemon import write_through
from eventually import PATIENCE_S, eventually
from free_ports import free_ports
from metrics_scrape import ask, sample_names, scrape, value
from pagetier.client.group_match import Lookup
from pagetier.client.session_lookups import count_lookup
from pagetier.shm.exit_codes import Exit
from refused_starts import arguments, pagetierd, refused
from running_daemon import RunningDaemon, namespace

PAGE, FRAME = 60_000, 1 << 16


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics") / "metrics.sock"


@pytest.fixture(scope="module")
def daemon(place: Path, turns: Turns) -> Iterator[RunningDaemon]:
    flags = ("--set", f"metrics.listen={place}", "--constant", "metrics.namespaces=2")
    with RunningDaemon("1MiB", "64KiB", *flags, before=turns.before) as running:
        yield running


def settled(place: Path) -> dict[str, Metric]:
    """Returns a scrape after the daemon has noticed published pages, for which it checks a few times a second."""
    assert eventually(lambda: value(scrape(place), "pagetier_pages", tier="memory", state="writing") == 0)
    return scrape(place)


def pages(count: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.zeros((count, PAGE), dtype=np.uint8)


def test_the_numbers_match_the_work_done(tmp_path: Path) -> None:
    place, keys = tmp_path / "metrics.sock", namespace(lora="numbers").keys(range(16 * 6))
    with RunningDaemon("1MiB", "64KiB", "--set", f"metrics.listen={place}") as daemon, daemon.client() as client:
        client.store(keys, pages(6))
        client.match(namespace().keys(range(48))).release()
        with client.match(keys) as match:
            client.load(match, pages(6))
        seen = settled(place)
    assert value(seen, "pagetier_lookups_total") == 2
    assert value(seen, "pagetier_lookup_pages_total", tier="memory", result="hit") == 6
    assert value(seen, "pagetier_lookup_pages_total", tier="memory", result="miss") == 3
    assert value(seen, "pagetier_lookup_tokens_total", tier="memory", result="hit") == 96
    assert value(seen, "pagetier_lookup_tokens_total", tier="memory", result="miss") == 48
    assert value(seen, "pagetier_pages", tier="memory", state="readable") == 6
    assert value(seen, "pagetier_transfer_bytes_total", source="engine", destination="memory") == 6 * PAGE
    assert value(seen, "pagetier_transfer_bytes_total", source="memory", destination="engine") == 6 * PAGE
    assert value(seen, "pagetier_transfer_seconds_total", source="engine", destination="memory") > 0
    assert value(seen, "pagetier_transfer_seconds_total", source="memory", destination="engine") > 0
    assert value(seen, "pagetier_reservations_total", result="granted") == 6
    assert value(seen, "pagetier_reserve_latency_seconds_count") == 1
    assert value(seen, "pagetier_reserve_latency_seconds_sum") > 0
    assert value(seen, "pagetier_attached_processes") == 1
    assert value(seen, "pagetier_disk_standing", standing="none") == 1
    assert value(seen, "pagetier_namespace_pages", namespace=keys.namespace.name, tier="memory") == 6


def test_the_numbers_of_the_disk_match_the_work_done(tmp_path: Path) -> None:
    place, keys = tmp_path / "metrics.sock", namespace(lora="numbers").keys(range(16 * 6))
    with write_through("--set", f"metrics.listen={place}") as daemon, daemon.client() as client:
        client.store(keys, pages(6))
        daemon.push_out(client, keys)
        with client.match(keys) as match:
            client.load(match, pages(6), timeout=PATIENCE_S)
        daemon.until_written()
        seen = scrape(place)
    written = value(seen, "pagetier_transfer_bytes_total", source="memory", destination="disk")
    assert written >= 6 * PAGE
    assert value(seen, "pagetier_transfer_bytes_total", source="disk", destination="memory") == 6 * PAGE
    assert value(seen, "pagetier_transfer_seconds_total", source="memory", destination="disk") > 0
    assert value(seen, "pagetier_transfer_seconds_total", source="disk", destination="memory") > 0
    assert value(seen, "pagetier_evictions_total", tier="memory", reason="room") >= 6
    assert value(seen, "pagetier_disk_standing", standing="open") == 1
    assert value(seen, "pagetier_write_behind_queue_pages", state="waiting") == 0
    assert value(seen, "pagetier_write_behind_queue_pages", state="writing") == 0
    assert value(seen, "pagetier_checksum_failures_total") == 0
    assert value(seen, "pagetier_lookup_tokens_total", tier="disk", result="hit") >= 96
    assert value(seen, "pagetier_attached_processes") == 2
    room = value(seen, "pagetier_tier_room_bytes", tier="disk")
    on_disk = [value(seen, "pagetier_tier_bytes", tier="disk", state=state) for state in ("pages", "slack", "free")]
    assert sum(on_disk) == room < value(seen, "pagetier_tier_limit_bytes", tier="disk")
    assert value(seen, "pagetier_tier_room_pages", tier="disk") == room // FRAME


def test_tokens_that_were_computed_are_counted_by_tier_and_kept(daemon: RunningDaemon, place: Path) -> None:
    with daemon.client() as client:
        slower = {"memory_slower_tokens": 2, "disk_slower_tokens": 3, "remote_slower_tokens": 4}
        count_lookup(client.session, Lookup(0, 0, 0, 0, 9, **slower))
    assert eventually(lambda: value(scrape(place), "pagetier_attached_processes") == 0)
    seen = scrape(place)
    counted = [value(seen, "pagetier_slower_tokens_total", tier=tier) for tier in ("memory", "disk", "remote")]
    assert counted == [2, 3, 4]


def test_the_bytes_of_a_tier_are_its_limit(daemon: RunningDaemon, place: Path) -> None:
    with daemon.client() as client:
        client.store(namespace(lora="bytes").keys(range(64)), pages(4))
        seen = scrape(place)
    states = [value(seen, "pagetier_tier_bytes", tier="memory", state=state) for state in ("pages", "slack", "free")]
    assert sum(states) == value(seen, "pagetier_tier_limit_bytes", tier="memory") == 1 << 20
    assert min(states) > 0


def test_how_many_pages_fit_is_missing_before_the_first_page(tmp_path: Path) -> None:
    place = tmp_path / "metrics.sock"
    with RunningDaemon("1MiB", "64KiB", "--set", f"metrics.listen={place}") as daemon, daemon.client() as client:
        before = scrape(place)
        client.store(namespace(lora="fit").keys(range(16)), pages(1))
        after = scrape(place)
    assert "pagetier_tier_room_pages" not in before and "pagetier_tier_room_bytes" in before
    assert value(after, "pagetier_tier_room_pages", tier="memory") == 16


def test_names_follow_the_rules_of_prometheus(place: Path, daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        client.store(namespace(lora="rules").keys(range(16)), pages(1))  # metrics of namespaces need one
    seen = scrape(place)
    assert len(seen) > 30
    for family in seen.values():
        assert family.documentation, family.name
        if not family.name.startswith("pagetier_"):
            assert family.name.startswith("process_")
            continue
        assert re.fullmatch("[a-z][a-z0-9_]*", family.name)
        assert not re.search("_(ms|us|ns|kb|mb|mib|gib|minutes|percent)(_|$)", family.name)
        assert not family.name.endswith(("_count", "_sum", "_bucket"))
        totals = {sample.name.endswith("_total") for sample in family.samples}
        assert totals == {family.type == "counter"} or family.type == "histogram", family.name


def test_namespaces_are_bounded_and_none_is_left_out(daemon: RunningDaemon, place: Path) -> None:
    with daemon.client() as client:
        for number in range(5):
            client.store(namespace(lora=f"space {number}").keys(range(16 * (number + 1))), pages(number + 1))
        seen = settled(place)
    by_namespace = {
        s.labels["namespace"]: s.value for s in seen["pagetier_namespace_pages"].samples if s.labels["tier"] == "memory"
    }
    assert len(by_namespace) == 3
    assert "others" in by_namespace
    assert sum(by_namespace.values()) == value(seen, "pagetier_pages", tier="memory", state="readable")


def test_a_death_is_counted(daemon: RunningDaemon, place: Path) -> None:
    before = value(scrape(place), "pagetier_owner_deaths_total")
    code = f"import os; from pagetier.client import Client; c = Client({str(daemon.socket)!r})"
    code += f"; c.wait_attached({PATIENCE_S}); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert eventually(lambda: value(scrape(place), "pagetier_owner_deaths_total") == before + 1)


@pytest.mark.usefixtures("daemon")
def test_a_scrape_waits_for_no_turn(place: Path, turns: Turns) -> None:
    """Other processes delay scrapes, so that some take longer than a turn of the daemon's periodic work."""

    def is_answered_between_turns() -> bool:
        turns.passed()
        ask(place)
        return turns.passed() == 0

    assert eventually(is_answered_between_turns)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /metrics HTTP/1.1", 200),
        ("GET /metrics?name=x HTTP/1.0", 200),
        ("GET / HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 405),
        ("GET /metrics", 400),
        ("\x16\x03\x01 nonsense", 400),
        ("GET /" + "x" * 20_000 + " HTTP/1.1", 404),
    ],
)
def test_requests(daemon: RunningDaemon, place: Path, request_line: str, status: int) -> None:
    assert ask(place, f"{request_line}\r\nHost: x\r\n\r\n".encode("latin-1")).status == status


def test_an_endless_request_is_rejected(daemon: RunningDaemon, place: Path) -> None:
    assert ask(place, b"GET " + b"x" * 20_000).status == 431


def test_openmetrics_is_served_on_request(daemon: RunningDaemon, place: Path) -> None:
    kind = b"application/openmetrics-text; version=1.0.0"
    answer = ask(place, b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: " + kind + b"\r\n\r\n")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.body.endswith("# EOF\n")


def test_silent_connections_delay_no_scrape(daemon: RunningDaemon, place: Path) -> None:
    with ExitStack() as silent:
        for _ in range(20):
            one = silent.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            one.connect(str(place))
        assert ask(place).status == 200


def test_metrics_are_served_on_a_local_port() -> None:
    (port,) = free_ports(1)
    with RunningDaemon("1MiB", "64KiB", "--set", f"metrics.listen={port}") as daemon:
        assert "pagetier_build_info" in sample_names(scrape(port))
        assert f"metrics on 127.0.0.1:{port}" in daemon.log.read_text()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


def test_a_port_in_use_is_reported_and_nothing_is_left(given: list[str], taken_port: int, tmp_path: Path) -> None:
    text = refused(*given, "--set", f"metrics.listen=127.0.0.1:{taken_port}")
    assert f"metrics.listen = 127.0.0.1:{taken_port}: Address already in use" in text
    assert not (tmp_path / "s").exists()


def test_a_port_in_use_loses_no_pages_of_an_earlier_daemon(left: RunningDaemon, taken_port: int) -> None:
    ended = pagetierd(*arguments(left, "--set", f"metrics.listen={taken_port}"))
    assert ended.code == Exit.REFUSED, ended.text


def test_the_socket_goes_with_the_daemon(tmp_path: Path) -> None:
    place = tmp_path / "metrics.sock"
    with RunningDaemon("1MiB", "64KiB", "--set", f"metrics.listen={place}") as daemon:
        daemon.kill()
        assert place.exists()
        daemon.start()
        assert ask(place).status == 200
    assert not place.exists()


def test_a_daemon_without_metrics_and_disk_does_not_import_their_libraries() -> None:
    with RunningDaemon("1MiB", "64KiB") as daemon:
        maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "posix_ipc" in maps and "numpy" not in maps
    code = "import sys, pagetier.daemon.main; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
