"""The circuit breaker: three failures in a row open it, an answer closes it, probes come at growing intervals."""

from __future__ import annotations

from pagetier.daemon.fleet.breaker import FAILURES, Breaker, Call


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(Call.QUESTION, 10.0)
    return breaker


def test_only_failures_in_a_row_open_it() -> None:
    breaker = Breaker()
    for _ in range(10):
        breaker.failed(Call.QUESTION, 0.0)
        breaker.failed(Call.QUESTION, 0.0)
        breaker.answered(Call.QUESTION)
    assert not breaker.is_open and breaker.openings == 0
    assert opened().is_open and opened().openings == 1


def test_probes_come_after_1_2_4_and_at_most_30_seconds() -> None:
    breaker, probes = opened(), list[float]()
    for tenth in range(100, 1500):
        if breaker.take_probe(tenth / 10):
            breaker.failed(Call.QUESTION, tenth / 10)
            probes.append(tenth / 10)
    gaps = [after - before for before, after in zip([10.0, *probes], probes, strict=False)]
    assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0] and breaker.openings == 1


def test_an_answer_closes_it_and_it_begins_again() -> None:
    breaker = opened()
    assert breaker.take_probe(11.0) and not breaker.take_probe(11.0)
    breaker.probe_answered()
    assert not breaker.is_open and not breaker.take_probe(100.0)
    for _ in range(FAILURES):
        breaker.failed(Call.QUESTION, 200.0)
    assert breaker.openings == 2 and breaker.opened_at == 200.0 and breaker.take_probe(201.0)


def test_answered_questions_do_not_hide_reads_that_hang() -> None:
    breaker = Breaker()
    for second in range(FAILURES):
        assert not breaker.is_open
        breaker.answered(Call.QUESTION)
        breaker.failed(Call.READ, float(second))
        breaker.answered(Call.QUESTION)
    assert breaker.is_open and breaker.openings == 1


def test_after_a_probe_one_more_failed_read_opens_it_for_longer() -> None:
    breaker = Breaker()
    for call in (Call.READ, Call.WRITE, Call.READ):
        breaker.failed(call, 10.0)
    assert breaker.is_open and breaker.take_probe(11.0)
    breaker.probe_answered()
    assert not breaker.is_open
    breaker.failed(Call.READ, 12.0)
    assert breaker.is_open and not breaker.take_probe(13.9) and breaker.take_probe(14.0)
    breaker.probe_answered()
    breaker.answered(Call.READ)
    breaker.answered(Call.WRITE)
    breaker.failed(Call.READ, 20.0)
    assert not breaker.is_open, "an answered read ends the trial"


def test_an_answer_to_an_earlier_question_does_not_close_what_reads_have_opened() -> None:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(Call.READ, 0.0)
    breaker.answered(Call.QUESTION)
    assert breaker.is_open
    breaker.answered(Call.READ)
    assert not breaker.is_open
