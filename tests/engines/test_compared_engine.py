"""Tests the engines that the benchmarks compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventually import pause
from serving.engine import Engine
from serving.model import llama

WAIT_S = 0.9
"""The worker of an engine with processes of its own occupies a core for a second after each answer."""


@pytest.mark.wall_clock
def test_an_engine_that_waits_for_its_turn_takes_no_cpu_time(tmp_path: Path) -> None:
    engine = Engine("vllm", llama(tmp_path / "model", hidden=64, layers=1, length=2048), None)
    try:
        engine.ready()
        engine.run([[7] * 40])
        before = engine.processor_seconds()
        pause(WAIT_S)
        assert engine.processor_seconds() - before < WAIT_S / 3
    finally:
        engine.stop()
