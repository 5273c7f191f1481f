"""Tests `pagetier stats` against a real daemon."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from fake_snapshots import snapshot
from pagetier.daemon.cli.stats import one_line
from pagetier.daemon.cli.tables import age, count, disk_lines
from pagetier.daemon.cli.tier_text import at_opening, synced
from pagetier.daemon.stats.lookup_stats import LookupStats
from pagetier.daemon.stats.snapshot import DiskWork
from pagetier.daemon.status.disk_report import DeviceReport, DiskReport, Standing, summed
from running_daemon import RunningDaemon, namespace
from terminal import pagetier_on_terminal

PAGE = 100_000
_STANDINGS = (Standing.OPEN, Standing.DOWN)
BOLD = re.compile("\x1b\\[[0-9;]*m")

# Scripts parse these keys: new ones may be added, none is renamed.
KEYS = {
    "": {
        *("daemon", "tiers", "disk", "disk_work", "lookups", "absent", "stores", "eviction", "hints", "huge_pages"),
        *("tenants", "fleet", "namespaces", "clients"),
    },
    "daemon": {
        *("build", "segments", "incarnation", "frame_bytes", "entries", "free_entries", "namespaces"),
        *("departed", "unjudged", "adopted", "dropped", "phase", "progress"),
    },
    "tiers": {"memory", "disk"},
    "tiers.memory": {
        *("cap", "used", "pages", "bytes", "hits", "misses", "evictions", "evicted_bytes", "flushed"),
        *("bytes_in", "bytes_out", "room", "room_pages"),
    },
    "disk": {
        *("standing", "trouble", "folder", "write", "opened", "note", "cap", "file_bytes", "disk_free", "disk_total"),
        *("last_sync", "clean", "damaged", "device_bytes", "restarts", "budget", "room_frames", "devices"),
        "expected_pages",
    },
    "disk_work": {"written", "read", "lost", "skipped", "failed", "damaged"},
    "lookups": {"lookups", "memory_tokens", "disk_tokens", "remote_tokens", "missed_tokens"}
    | {"memory_slower_tokens", "disk_slower_tokens", "remote_slower_tokens"},
    "absent": {"never_stored", "evicted_from_memory", "evicted_from_disk", "dropped", "in_other_namespace"},
    "stores": {"writing", "granted", "present", "pending", "refused", "doomed", "expired"},
    "eviction": {"policy", "state", "left_out", "switches"},
    "hints": {"pages", "applied", "absent", "without_effect", "wrong", "kept_bytes", "keeps_ended_early"},
    "huge_pages": {"index", "locks", "arena"},
    "namespaces": {"label", "digest", "page_tokens", "pages", "bytes", "disk_pages", "disk_bytes", "disk_stored"},
    "clients": {
        *("slot", "pid", "uid", "name", "age_seconds", "pins", "lookups", "hits", "misses", "unjudged"),
        *("loaded_pages", "loaded_bytes", "stored_pages", "stored_bytes", "lost_pages", "pinned_bytes", "bounded"),
    },
}


def stats_json(daemon: RunningDaemon) -> dict[str, Any]:
    result = daemon.pagetier("stats", "--json")
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def test_the_keys_are_stable(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        client.store(namespace(lora="keys").keys(range(16)), [bytes(PAGE)])
        values = stats_json(daemon)
    assert set(values) == KEYS[""]
    assert set(values["tiers"]) == KEYS["tiers"]
    for tier in values["tiers"].values():
        assert set(tier) == KEYS["tiers.memory"]
    for name in ("daemon", "disk", "disk_work", "lookups", "absent", "stores", "eviction", "hints", "huge_pages"):
        assert set(values[name]) == KEYS[name]
    for name in ("namespaces", "clients"):
        assert all(set(item) == KEYS[name] for item in values[name])
        assert values[name]


def test_counters_match_the_operations() -> None:
    pages = np.zeros((10, PAGE), dtype=np.uint8)
    keys = namespace(lora="numbers").keys(range(160))
    with RunningDaemon() as daemon, daemon.client(name="engine 7") as client:
        client.store(keys, pages)
        client.match(namespace().keys(range(48))).release()
        with client.match(keys) as match:
            client.load(match, np.empty_like(pages))
            values = stats_json(daemon)
        memory, disk = values["tiers"]["memory"], values["tiers"]["disk"]
        assert (memory["cap"], memory["used"]) == (16 << 20, 10 * 2 * (64 << 10))
        assert (memory["pages"], memory["bytes"]) == (10, 10 * PAGE)
        assert (memory["hits"], memory["evictions"]) == (10, 0)
        assert memory["misses"] >= 1
        assert (memory["bytes_in"], memory["bytes_out"]) == (10 * PAGE, 10 * PAGE)
        assert disk == dict.fromkeys(disk, 0)
        (space,) = values["namespaces"]
        assert space["label"] == namespace(lora="numbers").name
        assert (space["digest"], space["page_tokens"]) == (keys.namespace.digest.hex(), 16)
        assert (space["pages"], space["bytes"]) == (10, 10 * PAGE)
        (one,) = values["clients"]
        assert (one["name"], one["pins"], one["hits"], one["lookups"]) == ("engine 7", 10, 10, 2)
        assert (one["loaded_pages"], one["stored_bytes"]) == (10, 10 * PAGE)
        assert 0 <= one["age_seconds"] < 60
        assert values["stores"]["granted"] == 10
        assert values["lookups"] == {
            "lookups": 2,
            "memory_tokens": 160,
            "disk_tokens": 0,
            "remote_tokens": 0,
            "memory_slower_tokens": 0,
            "disk_slower_tokens": 0,
            "remote_slower_tokens": 0,
            "missed_tokens": 48,
        }
        assert values["daemon"]["incarnation"] >= 1


def test_counters_outlive_client_and_daemon() -> None:
    keys = namespace().keys(range(32))
    with RunningDaemon() as daemon:
        with daemon.client() as client:
            client.store(keys, np.zeros((2, PAGE), dtype=np.uint8))
            client.match(keys).release()
        before = stats_json(daemon)
        daemon.kill()
        daemon.start()
        after = stats_json(daemon)
    assert after["clients"] == []
    assert after["tiers"]["memory"]["hits"] == before["tiers"]["memory"]["hits"] == 2
    assert after["tiers"]["memory"]["pages"] == 2
    assert after["daemon"]["segments"] == before["daemon"]["segments"]
    assert after["daemon"]["incarnation"] == before["daemon"]["incarnation"] + 1
    assert after["daemon"]["adopted"] == 2


def test_an_empty_cache_does_not_say_how_many_pages_fit(daemon: RunningDaemon) -> None:
    """Their size is not known: it would be the number of frames."""
    daemon.drop_all_pages()
    short, doctor = daemon.pagetier("stats", "--short").stdout, daemon.pagetier("doctor").stdout
    assert "memory no page, 0 B of " in short and ", no page in 0 B of " in doctor
    assert row(daemon, "room in pages") == ["-"] and "no page" not in daemon.pagetier("top").stdout
    with daemon.client() as client:
        client.store(namespace(lora="one").keys(range(16)), [bytes(PAGE)])
        assert "memory 1 of " in daemon.pagetier("stats", "--short").stdout
        assert int(row(daemon, "room in pages")[0]) > 1


def row(daemon: RunningDaemon, label: str) -> list[str]:
    """Returns the cells of a row of the table of tiers."""
    (line,) = [line for line in daemon.pagetier("stats").stdout.splitlines() if line.startswith(label)]
    return line.removeprefix(label).split()


@pytest.mark.parametrize(
    ("report", "opened", "written"),
    [
        (DiskReport(), "not opened yet", "not synced yet"),
        (DiskReport(opened="new", last_sync=1.0, clean=True), "opened new and empty", "synced: what is on disk"),
        (
            DeviceReport(opened="as it was left", last_sync=1.0, clean=False),
            "opened as it was left",
            "a power loss takes what",
        ),
    ],
)
def test_it_says_what_a_power_loss_takes(report: DiskReport | DeviceReport, opened: str, written: str) -> None:
    assert at_opening(report) == opened and written in synced(report)


def test_evictions_are_counted() -> None:
    with RunningDaemon("1MiB") as daemon, daemon.client() as client:
        for chain in range(3):
            client.store(namespace(lora=f"{chain}").keys(range(96)), np.zeros((6, 64 << 10), dtype=np.uint8))
        memory = stats_json(daemon)["tiers"]["memory"]
    assert memory["evictions"] >= 2
    assert memory["evicted_bytes"] == memory["evictions"] * (64 << 10)
    assert memory["pages"] + memory["evictions"] == 18
    assert memory["used"] <= memory["cap"]


def test_the_header_and_the_line_say_what_was_found_where() -> None:
    lookups = LookupStats(lookups=9, memory_tokens=545, disk_tokens=241, missed_tokens=214)
    seen = msgspec.structs.replace(snapshot(), lookups=lookups)
    assert lookups.text == "78.6% of the tokens that engines lacked were found (54.5% in memory, 24.1% on disk)"
    assert f"; {lookups.text}; " in one_line(seen)
    memory_only = msgspec.structs.replace(lookups, disk_tokens=0)
    assert memory_only.text == "71.8% of the tokens that engines lacked were found"
    slower = msgspec.structs.replace(memory_only, memory_slower_tokens=100, disk_slower_tokens=50)
    computed = "computed because loading is slower: 13.2% in memory, 6.6% on disk"
    assert slower.text == f"71.8% of the tokens that engines lacked were found, {computed}"


def test_the_header_says_what_hits_and_ratios_count(daemon: RunningDaemon) -> None:
    shown = " ".join(daemon.pagetier("stats").output.split())
    assert "Hits and misses of memory are pages at the first match of each request" in shown
    assert "count below only: as misses, and as not in time, if memory lacks them" in shown
    assert re.search(
        r"No lookups yet|[1-9]\d* lookups?: [\d.]+% of the tokens that engines lacked were found", shown
    ), shown


def test_a_device_that_is_down_is_in_the_short_line() -> None:
    devices = tuple(DeviceReport(folder=f"/d{at}", standing=standing) for at, standing in enumerate(_STANDINGS))
    seen = msgspec.structs.replace(snapshot(), disk=summed(devices, "evict", None))
    assert "disk 1 of 1 page, 1 B of 1 B (/d1: down)" in one_line(seen)
    down = msgspec.structs.replace(seen, disk=DiskReport(standing=Standing.DOWN, trouble="no worker"))
    assert "; disk is down (no worker); " in one_line(down)


def test_what_the_disk_could_not_write_is_not_what_the_budget_did_not_allow() -> None:
    work = DiskWork(written=9, read=0, lost=0, skipped=2, failed=1, damaged=0)
    lines = list(disk_lines(DiskReport(standing=Standing.OPEN), work))
    assert lines[-1] == "1 page that could not be written; 2 pages not written, since disk.budget was spent"


def test_without_a_terminal_the_tables_are_plain(daemon: RunningDaemon) -> None:
    with daemon.client(name="plain"):
        output = daemon.pagetier("stats").stdout
    assert "\x1b" not in output
    assert all(word in output for word in ("\nTier  ", "memory", "hit ratio", "evictions", "Client", "plain"))
    assert "disk" not in output


def test_no_line_is_wider_than_the_terminal(daemon: RunningDaemon) -> None:
    with daemon.client(name="an engine with a name as long as it may be"):
        terminal = pagetier_on_terminal(["stats", "--socket", str(daemon.socket)])
    assert terminal.code == 0
    assert "\x1b" in terminal.text
    lines = [BOLD.sub("", line) for line in terminal.lines]
    assert max(map(len, lines[1:])) <= 80, terminal.text
    assert "hit ratio" in "\n".join(lines)


@pytest.mark.parametrize("words", [["stats"], ["top", "--once", "--interval", "0.1"]])
def test_zero_columns_mean_an_unknown_width(
    words: list[str], daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, "0")
    values = daemon.pagetier(*words)
    assert (values.exit_code, "memory" in values.output) == (0, True), values.output
    assert max(map(len, values.output.splitlines())) > 40


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (99_999, "99,999"), (100_000, "100k"), (999_999, "999k"), (1_200_000, "1.2M"), (10**12, "1.0T")],
)
def test_counts_are_short(number: int, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0s"), (59, "59s"), (60, "1m"), (7300, "2h"), (86400 * 8, "8d")])
def test_ages_are_short(seconds: float, text: str) -> None:
    assert age(seconds) == text
