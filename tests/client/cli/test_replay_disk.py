"""Tests `pagetier-bench replay` with a disk: evicted pages are hit on disk, byte for byte, and counted separately."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from disk_daemon import write_through
from eventually import eventually
from replay_command import (
    BLOCK,
    PAGE,
    Chain,
    chat,
    observing,
    replay_json,
    replaying,
    report_of,
    until_granted,
    write_trace,
)


def unlimited_hits(chains: list[Chain]) -> int:
    """Returns the hits of a cache without evictions."""
    seen: set[int] = set()
    hits = 0
    for chain in chains:
        hits += next((at for at, block in enumerate(chain) if block not in seen), len(chain))
        seen.update(chain)
    return hits


@pytest.mark.parametrize("write", [None, "through"])
def test_evicted_pages_are_hit_on_disk(tmp_path: Path, write: str | None) -> None:
    """The daemon of the first replay writes all pages when it stops, however slow the disk is.

    Traces whose names begin alike share their pages.
    """
    chains = chat(400, seed=1)
    first, _ = write_trace(tmp_path / "chat.first.jsonl.gz", chains[:200])
    trace, tokens = write_trace(tmp_path / "chat.jsonl.gz", chains)
    more = ("--disk", "64MiB", "--disk-path", tmp_path / "disk", *(("--disk-write", write) if write else ()))
    replay_json(first, "--arena", "4MiB", *more)
    report = replay_json(trace, "--arena", 64 * PAGE, "--pace", 100, *more)
    assert report["requests"] == 400 and report["prompt_tokens"] == tokens
    assert report["wrong_pages"] == 0
    memory, disk = report["hit_tokens_memory"], report["hit_tokens_disk"]
    assert memory + disk == report["pages_loaded"] * BLOCK and disk == report["pages_loaded_disk"] * BLOCK
    assert report["token_hit_ratio_memory"] == memory / tokens and report["token_hit_ratio_disk"] == disk / tokens
    assert report["token_hit_ratio"] == (memory + disk) / tokens
    assert memory > 0 and report["pages_loaded_disk"] > 100
    hits, lost = report["pages_loaded"], report["disk_pages_lost"] + report["pages_refused"]
    most = unlimited_hits(chains[:200] + chains) - unlimited_hits(chains[:200])
    assert hits <= most and (lost or hits == most)
    assert report["disk_pages_read"] >= report["pages_loaded_disk"]
    assert report["disk_bytes_read"] == report["disk_pages_read"] * PAGE
    assert report["disk_bytes_written"] == report["disk_pages_written"] * PAGE > 0
    assert report["disk_frames"] > 1000


def test_a_disk_that_is_kept_is_reused(tmp_path: Path) -> None:
    chains = chat(50, seed=2)
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chains)
    with_disk = ("--arena", "4MiB", "--disk", "64MiB", "--disk-path", tmp_path / "disk")
    first = replay_json(trace, *with_disk)
    assert first["hit_tokens_disk"] == 0
    again = replay_json(trace, *with_disk)
    assert again["pages_loaded"] == again["pages_asked"] and again["pages_stored"] == 0, (
        "the daemon did not write all pages when it stopped"
    )
    assert again["pages_loaded_disk"] == first["pages_stored"]
    assert again["wrong_pages"] == 0


def test_a_running_daemon_with_a_disk_has_disk_hits(tmp_path: Path) -> None:
    chains = chat(200, seed=3)
    first, _ = write_trace(tmp_path / "chat.first.jsonl.gz", chains[:1])
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chains)
    with write_through() as daemon:
        assert replay_json(first, "--socket", daemon.socket)["pages_stored"] > 0
        daemon.until_written()
        assert eventually(lambda: not daemon.flush("memory").kept)
        report = replay_json(trace, "--socket", daemon.socket, "--clients", 3, "--pace", 100)
    assert report["wrong_pages"] == report["clients_died"] == 0
    assert report["pages_loaded_disk"] > 0


def test_a_replay_survives_the_death_of_the_disk_worker(tmp_path: Path) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(400, seed=4))
    with write_through() as daemon, observing(daemon.socket) as observer:
        with replaying(trace, "--socket", daemon.socket, "--clients", 2, "--pace", 200) as process:
            until_granted(200, observer, process)
            os.kill(daemon.worker(), signal.SIGKILL)
            report = report_of(process)
            assert process.returncode == 0
        assert report["requests"] == 400 and report["wrong_pages"] == report["clients_died"] == 0
        assert eventually(lambda: observer.header().disk_frames > 0)


@pytest.mark.wall_clock
def test_the_rate_of_requests_is_limited(tmp_path: Path) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(40, seed=5))
    report = replay_json(trace, "--arena", "4MiB", "--pace", 20, "--clients", 2)
    assert report["requests"] == 40
    assert report["seconds"] > 1.9
    assert report["requests_per_second"] < 21
