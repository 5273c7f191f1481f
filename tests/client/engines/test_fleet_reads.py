"""Questions to the fleet that the daemon never answers: engines stop asking for a while, not for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pagetier.client.engines.fleet_reads import FleetLimits, FleetReads
from virtual_clock import VirtualClock

_PAGE_TOKENS = 256


class _SilentThread:
    """A thread whose questions get no answer."""

    def run(self, call: object) -> bool:
        return True


def match_of(prompt: int) -> Any:
    """Returns a match of four pages that found none of them."""
    keys = [b"%031d%d" % (prompt, page) for page in range(4)]
    group = SimpleNamespace(keys=keys, group=SimpleNamespace(page_tokens=_PAGE_TOKENS))
    return SimpleNamespace(asked=4 * _PAGE_TOKENS, available_tokens=0, groups=[group])


def test_a_question_without_an_answer_is_forgotten(standing_clock: VirtualClock) -> None:
    client, thread = SimpleNamespace(), _SilentThread()
    reads = FleetReads(client, thread)  # type: ignore[arg-type]
    reads.limits = FleetLimits(timeout=2.0, least=_PAGE_TOKENS, ask_timeout=0.05)
    first = reads.ask(match_of(1), 0)
    assert first is not None and first.waits(standing_clock.now)
    assert reads.ask(match_of(1), 0) is first, "requests with the same first missing page share it"
    standing_clock.passes(1.0)
    assert not first.waits(standing_clock.now)
    assert reads.ask(match_of(2), 0) is None, "the daemon does not answer"
    standing_clock.passes(12.0)
    again = reads.ask(match_of(2), 0)
    assert again is not None and again.waits(standing_clock.now) and first.ended
