"""One line when trouble comes and one when it goes, however often it does both."""

from __future__ import annotations

import pytest

from pagetier.daemon.common.log_throttle import QUIET_S, FaultLog


def test_trouble_that_comes_and_goes_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    grumble = FaultLog("it fails: %s", "it works again", lambda: now)
    with caplog.at_level("INFO"):
        for _ in range(100):
            grumble.tell("no room")
            grumble.tell("no room")
            grumble.tell("")
        assert caplog.messages == ["it fails: no room", "it works again"]
        now += QUIET_S
        grumble.tell("50 % full")
        grumble.tell("something else")
        grumble.tell("")
    assert caplog.messages[2:] == ["it fails: 50 % full", "it works again"]


def test_without_a_line_for_its_end(caplog: pytest.LogCaptureFixture) -> None:
    grumble = FaultLog("a page: %s")
    with caplog.at_level("INFO"):
        for reason in ("", "damaged", "", "damaged"):
            grumble.tell(reason)
    assert caplog.messages == ["a page: damaged"]
