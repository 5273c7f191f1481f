"""What strace sees the worker ask of its disk, and what becomes of it if strace has that fail, wait or be its end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.gate import Call
from faults.judging import works_again
from faults.sweeping import EVERYTHING, Theatre, theatre
from faults.tracing import calls_in, recorded
from faults.tracked import Injection, StoreAndSave, every, meet
from running import START_S, eventually
from sweep.scene import Scene

_FEW = (
    *every("pwrite64", "signal=KILL", 1),
    Injection("fdatasync", "error=EIO:when=1"),
    Injection("writev", "error=ENOSPC:when=1+"),
    Injection("pwrite64", "delay_enter=1000000:when=1"),
)
_MORE = (
    *every("pwrite64", "signal=KILL", 8),
    *every("writev", "signal=KILL", 8),
    *every("fdatasync", "signal=KILL", 2),
    *every("fsync", "signal=KILL", 3),
    *every("ftruncate", "signal=KILL", 3),
    *every("renameat2", "signal=KILL", 2),
    *(Injection(call, f"error={error}:when=1+") for call in ("pwrite64", "writev") for error in ("EIO", "ENOSPC")),
    *(Injection(call, "error=EIO:when=1+") for call in ("fdatasync", "fsync", "ftruncate", "renameat2")),
    *(Injection(call, "delay_enter=10000000:when=1") for call in ("pwrite64", "writev", "fdatasync", "fsync")),
    Injection("fallocate", "error=ENOSPC:when=1+"),
)


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    with theatre(tmp_path_factory.mktemp("strace")) as made:
        yield made


@pytest.fixture
def scene(on: Theatre, tmp_path: Path) -> Iterator[Scene]:
    on.gate.watch(tmp_path / "disk")
    with Scene(on.stage.nursery, on.stage.control, tmp_path, StoreAndSave.flags(tmp_path)) as made:
        yield made


def test_nothing_passes_the_gate_unseen(on: Theatre, scene: Scene, tmp_path: Path) -> None:
    """What the sweeps let go wrong is all that there is."""
    scene.begin()
    operation = StoreAndSave(scene)
    operation.prepare()
    works_again(scene)
    worker = scene.worker()
    with recorded([scene.daemon.pid, worker], tmp_path / "trace"):
        on.gate.forget()
        operation.act()
        assert eventually(operation.done, START_S)
        works_again(scene)
        scene.empty()
        scene.daemon.signal(signal.SIGTERM)
        scene.daemon.wait()
    noted, seen = on.gate.counts(), calls_in(tmp_path / "trace", (tmp_path / "disk").resolve())
    opened = {one for one in noted if one.call is Call.OPEN}
    assert {one: noted[one] for one in noted if one not in opened} == dict(seen)
    assert {one.call for one in seen} >= {
        Call.PWRITE,
        Call.WRITEV,
        Call.PREAD,
        Call.FDATASYNC,
        Call.FSYNC,
        Call.FALLOCATE,
    }
    assert not any(one.call is Call.MSYNC for one in seen)
    scene.daemon.start()


@pytest.mark.parametrize("injection", _MORE if EVERYTHING else _FEW, ids=str)
def test_calls_that_the_kernel_is_told_to_fail(scene: Scene, injection: Injection) -> None:
    meet(scene, injection)
