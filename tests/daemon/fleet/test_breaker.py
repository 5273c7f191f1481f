"""The circuit breaker: three failures in a row open it, an answer closes it, probes come at growing intervals."""

from __future__ import annotations

from pagetier.daemon.fleet.breaker import FAILURES, Breaker


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(10.0)
    return breaker


def test_only_failures_in_a_row_open_it() -> None:
    breaker = Breaker()
    for _ in range(10):
        breaker.failed(0.0)
        breaker.failed(0.0)
        breaker.answered()
    assert not breaker.is_open and breaker.openings == 0
    assert opened().is_open and opened().openings == 1


def test_probes_come_after_1_2_4_and_at_most_30_seconds() -> None:
    breaker, probes = opened(), list[float]()
    for tenth in range(100, 1500):
        if breaker.take_probe(tenth / 10):
            breaker.failed(tenth / 10)
            probes.append(tenth / 10)
    gaps = [after - before for before, after in zip([10.0, *probes], probes, strict=False)]
    assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0] and breaker.openings == 1


def test_an_answer_closes_it_and_it_begins_again() -> None:
    breaker = opened()
    assert breaker.take_probe(11.0) and not breaker.take_probe(11.0)
    breaker.answered()
    assert not breaker.is_open and not breaker.take_probe(100.0)
    for _ in range(FAILURES):
        breaker.failed(200.0)
    assert breaker.openings == 2 and breaker.opened_at == 200.0 and breaker.take_probe(201.0)
