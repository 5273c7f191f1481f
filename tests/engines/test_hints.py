"""Tests that what a request says of its session reaches the daemon, and that wrong values do not harm the request."""

from __future__ import annotations

from typing import Any

from eventually import eventually
from one_host import Scene, exact, hybrid, prompt, scene_of
from pagetier.daemon.status.hint_report import HintReport


def counts(scene: Scene) -> HintReport:
    return scene.daemon.snapshot().hints


def test_hints_of_requests_reach_the_daemon() -> None:
    with scene_of(hybrid()[0]) as scene, scene.engine() as engine:

        def ask(number: int, said: dict[str, Any] | None) -> dict[str, Any]:
            return engine.do("generate", prompts=[prompt(number)], tokens=4, said=said)

        kept = ask(1, {"keep": 300, "returns_within": 60})
        assert eventually(lambda: counts(scene).kept_bytes > 0), (counts(scene), engine.log_tail())
        assert counts(scene).wrong == 0
        before = counts(scene).pages
        wrong = ask(1, {"keep": -1})
        assert exact(wrong) == exact(kept)
        ask(2, None)  # at its limit of tokens: its session is over
        assert eventually(lambda: counts(scene).pages > before), (counts(scene), engine.log_tail())
        assert "ignoring the hints of request" in engine.log_tail()
