"""Faults around SGLang's radix cache: no exception reaches SGLang, no page stays locked, and bytes are never wrong."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from disk_daemon import DiskDaemon
from eventually import eventually
from running_daemon import RunningDaemon
from sglang_engine import SglangEngine
from sglang_families import REFUSED
from sglang_model import Restored, Spec

_PAGES = 8
_SPEC = Spec("mha", 16, ranks=2)
_WHOLE = [Restored(128, 128, equal=True, failed=False)] * 2
_COMPUTED = [Restored(0, 0, equal=False, failed=False)] * 2


def is_sound(engine: SglangEngine, results: list[Restored]) -> bool:
    """Returns whether all ranks agree, no loaded byte is wrong, and nothing is locked or logged as an exception."""
    assert len(set(results)) == 1, results
    assert results[0].equal == (results[0].loaded > 0) and not results[0].failed, results
    assert engine.evict(1024) == [0, 0], "a node stays locked"
    assert "Traceback" not in engine.log, engine.log
    return results == _WHOLE


def test_a_daemon_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with DiskDaemon(1024, "256MiB", disk=tmp_path / "disk") as daemon, SglangEngine(_SPEC, daemon.socket) as engine:
        assert engine.insert(1, _PAGES) == [1, 1]
        daemon.kill()
        engine.reset()
        assert is_sound(engine, engine.restore(1, _PAGES)), "pages in memory outlive the daemon"
        assert engine.insert(2, _PAGES) == [0, 0], "nothing can be stored without a daemon"
        is_sound(engine, engine.restore(2, _PAGES))
        daemon.open()
        engine.reset()
        assert eventually(lambda: is_sound(engine, engine.restore(1, _PAGES)))
        assert eventually(lambda: engine.insert(3, _PAGES) == [1, 1] or engine.reset() is None)
        engine.reset()
        assert is_sound(engine, engine.restore(3, _PAGES))


def test_pages_are_found_after_a_restart_that_empties_memory(tmp_path: Path) -> None:
    with DiskDaemon(1024, "256MiB", disk=tmp_path / "disk") as daemon:
        with SglangEngine(_SPEC, daemon.socket) as engine:
            assert engine.insert(1, _PAGES) == [1, 1]
            daemon.save()
            daemon.stop()
            is_sound(engine, engine.restore(2, _PAGES))
            daemon.open()
        with SglangEngine(_SPEC, daemon.socket) as engine:
            assert eventually(lambda: is_sound(engine, engine.restore(1, _PAGES)))


@pytest.mark.parametrize("step", ["insert", "match", "queue", "load"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_daemon_that_ends_or_hangs_between_two_steps_costs_pages_only(step: str, number: signal.Signals) -> None:
    with RunningDaemon("64MiB", "4KiB") as daemon, SglangEngine(_SPEC, daemon.socket) as engine:
        assert engine.insert(1, _PAGES) == [1, 1]
        engine.reset()
        for at in ("insert", "match", "queue", "load"):
            if at == step:
                daemon.signal(number)
            match at:
                case "insert":
                    engine.insert(2, _PAGES)
                case "match":
                    engine.match_only("waiting", 1, _PAGES)
                case "queue":
                    assert engine.queue_matched("waiting") == [128, 128]
                case _:
                    assert engine.finish_queued("waiting") == _WHOLE
        is_sound(engine, engine.restore(1, _PAGES))
        engine.reset()
        assert is_sound(engine, engine.restore(1, _PAGES)), "mapped pages can be loaded without the daemon"
        if number is signal.SIGKILL:
            daemon.wait()
            daemon.start()
        else:
            daemon.signal(signal.SIGCONT)
        engine.reset()
        assert eventually(lambda: is_sound(engine, engine.restore(1, _PAGES)))


def test_a_full_arena_keeps_what_is_in_use(tmp_path: Path) -> None:
    with RunningDaemon("128KiB", "4KiB") as daemon, SglangEngine(_SPEC, daemon.socket) as engine:
        stored = [engine.insert(number, _PAGES)[0] for number in range(6)]
        assert sum(stored) >= 1
        engine.reset()
        assert any(is_sound(engine, engine.restore(number, _PAGES)) for number in reversed(range(6)))


def test_without_its_disk_memory_is_served(tmp_path: Path) -> None:
    with DiskDaemon(1024, "256MiB", disk=tmp_path / "disk") as daemon:
        daemon.wait_open()
        with SglangEngine(_SPEC, daemon.socket) as engine:
            assert engine.insert(1, _PAGES) == [1, 1]
            daemon.save()
            with daemon.away():
                engine.reset()
                assert is_sound(engine, engine.restore(1, _PAGES))
                assert engine.insert(2, _PAGES) == [1, 1]
                daemon.flush("memory")
                engine.reset()
                is_sound(engine, engine.restore(1, _PAGES))


def test_without_a_daemon_sglang_serves(tmp_path: Path) -> None:
    with SglangEngine(_SPEC, tmp_path / "nobody") as engine:
        assert engine.insert(1, _PAGES) == [0, 0]
        engine.reset()
        assert engine.restore(1, _PAGES) == _COMPUTED
        assert engine.log.count("nothing is cached until a daemon answers") == 1, engine.log


@pytest.mark.parametrize(
    ("extra", "line"),
    [
        (
            {"sockets": "/tmp/x"},
            "the known keys are socket, salt, name, weights, lease, disk_timeout, remote_timeout, remote_least, load,",
        ),
        ({"lease": "long"}, "Expected `float`"),
        ({"load": "memory=never"}, "what is in memory is always loaded"),
        ({"remote_timeout": 0.0}, "remote_timeout must be more than 0"),
        ({"weights": ""}, 'set "weights" in linker_extra_config'),
    ],
)
def test_a_wrong_setting_is_one_line_in_the_log(tmp_path: Path, extra: dict[str, object], line: str) -> None:
    with SglangEngine(Spec(), tmp_path / "nobody", **extra) as engine:
        assert engine.restore(1, _PAGES) == _COMPUTED[:1]
        assert engine.log.count(line) == 1, engine.log


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("version", "SGLang 9.9 is not known: use SGLang 0.5.23"),
        *REFUSED.items(),
    ],
)
def test_an_engine_that_is_not_supported_is_served_without_a_cache(tmp_path: Path, what: str, line: str) -> None:
    with RunningDaemon("16MiB", "4KiB") as daemon, SglangEngine(Spec(), daemon.socket, change=what) as engine:
        assert engine.insert(1, _PAGES) == [0]
        engine.reset()
        assert engine.restore(1, _PAGES) == _COMPUTED[:1]
        assert engine.log.count(f"pagetier caches nothing: {line}") == 1, engine.log


@pytest.mark.parametrize("alone", [0, 1])
def test_a_rank_that_cannot_cache_alone_is_served_with_the_others(alone: int) -> None:
    """The ranks neither wait for each other at the start, nor do some keep pages whose offloads others do not begin."""
    wrong = {alone: {"PAGETIER_COPY_CONFIG": "/nowhere/copy.toml"}}
    with RunningDaemon("16MiB", "4KiB") as daemon, SglangEngine(_SPEC, daemon.socket, environments=wrong) as engine:
        assert engine.insert(1, _PAGES) == [0, 0]
        is_sound(engine, engine.restore(1, _PAGES))
        engine.reset()
        assert engine.restore(1, _PAGES) == _COMPUTED
        for line in ("/nowhere/copy.toml: cannot be read", "another rank of this engine cannot cache anything"):
            assert engine.log.count(f"pagetier caches nothing: {line}") == 1, engine.log
