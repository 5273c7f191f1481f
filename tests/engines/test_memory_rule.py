"""vLLM's scheduler computes pages in memory where its workers report slower copies, and loads them again later."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest

from harnessed_models import assert_nothing_is_left, engine_of
from harnessed_scheduler import HarnessedEngine
from pagetier.client import Client
from pagetier.client.engines.vllm.connector_metadata import WorkerReport
from pagetier.shm import clock
from running_daemon import RunningDaemon

TOKENS, HIT = 100, 96
COMPUTE_S = 1e-3  # a token


class Time:
    """The time, which passes only in steps that compute."""

    def __init__(self) -> None:
        self.now = clock.now()


def computes_in_time(engine: HarnessedEngine, copies_s: list[float]) -> AbstractContextManager[object]:
    """Lets steps take as long as computing would, and workers report the first of `copies_s` for each load."""
    update, time = engine.scheduler.update_from_output, Time()

    def updated(scheduled: Any, output: Any) -> Any:
        time.now += COMPUTE_S * scheduled.total_num_scheduled_tokens
        report = output.kv_connector_output
        if report is not None and report.finished_recving:
            idle, names = not scheduled.num_scheduled_tokens, report.finished_recving
            ranks = [WorkerReport([], dict.fromkeys(names, took), idle) for took in (1e-6, copies_s[0])]
            report.kv_connector_worker_meta = ranks[0].aggregate(ranks[1])
        return update(scheduled, output)

    engine.scheduler.update_from_output = updated
    return mock.patch.object(clock, "now", lambda: time.now)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_hit_in_memory_never_costs_more_than_computing(daemon: RunningDaemon, client: Client, lag: int) -> None:
    engine, copies_s = engine_of("full", daemon, client, load="measured", lag=lag), [10 * COMPUTE_S * HIT]

    def loaded(number: int) -> int:
        engine.submit(number, TOKENS)
        assert engine.scheduler.reset_prefix_cache()
        return engine.run()

    with computes_in_time(engine, copies_s):
        for number in range(1, 4):  # computed and stored; the first step of an engine says less than later ones
            assert loaded(number) == 0
        assert loaded(1) == HIT, "nothing is known of copies"
        assert [loaded(number) for number in (1, 2, 3)] == [0, 0, 0]
        assert sum(slot.counts.memory_slower_tokens for slot in daemon.slots()) == 3 * HIT
        copies_s[0] = COMPUTE_S * HIT / 10
        found = [loaded(1 + number % 3) for number in range(600)]
        assert found.index(HIT) >= 100, "a probe costs a twentieth of what was computed since"
        assert found[-20:] == [HIT] * 20
    assert_nothing_is_left(engine, daemon)
