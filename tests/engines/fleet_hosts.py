"""Two hosts of a fleet: the first has computed prompts, and the second one has an engine with an empty cache."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from daemon_turns import PUBLISHED, Turns
from eventually import eventually
from one_host import Scene, ask, ask_after_reset, distance, prompt, scene_of, texts
from vllm_engine import LONG_S, VllmEngine

PROMPTS = [prompt(90), prompt(91)]
ASK_S, READ_S = 3.0, 6.0
"""The limits of the second engine: long enough for a busy machine where the store works."""

_ROUNDING = 0.05
_LIMITS = {"disk_timeout": 0, "remote_timeout": READ_S, "remote_ask_timeout": ASK_S}


class Hosts:
    """The hosts. `own` are the results of the first engine from vLLM's own prefix cache.

    Args:
        name: The model.
        stack: Ends daemons and engines.
        flags: The fleet, as flags of the daemons.
        first: Further flags of the first daemon.
    """

    def __init__(self, name: str, stack: ExitStack, flags: Sequence[str], first: Sequence[str] = ()) -> None:
        self._stack = stack
        shared = (*flags, "--set", f"remote.timeout={LONG_S}s")
        self.first = stack.enter_context(scene_of(name, *shared, *first))
        self._turns, asked = (
            stack.enter_context(Turns()),
            ("--set", "remote.write=never", "--set", f"remote.ask_timeout={ASK_S}s"),
        )
        self.second: Scene = stack.enter_context(scene_of(name, *shared, *asked, before=self._turns.before))

    def compute(self) -> None:
        """Computes the prompts on the first host, until the fleet has their pages. The second engine starts beside."""
        assert eventually(lambda: is_open(self.first) and is_open(self.second)), self.second.daemon.reported()
        self.engine: VllmEngine = self.second.engine(extra=_LIMITS)
        self._stack.push(self.engine)
        with self.first.engine() as engine:
            ask(engine, *PROMPTS)
            self.own = ask(engine, *PROMPTS)
            self.first.settle()
            pages = self.first.daemon.header().pages
            assert eventually(lambda: self.first.daemon.snapshot().fleet.written >= pages)
        ask(self.engine, prompt(92))  # the first steps of an engine are slow

    @property
    def remote_tokens(self) -> int:
        """The tokens that the second engine has loaded from the fleet."""
        return int(self.engine.do("metrics")["vllm:pagetier_remote_tokens"])

    @property
    def asks(self) -> bool:
        """Whether the breaker of the second host is closed."""
        return not self.second.daemon.snapshot().fleet.breaker_open

    def forget(self) -> None:
        """Removes all pages from the second host."""
        self.second.settle()
        assert self.second.daemon.pagetier("flush", "--all", "--yes").exit_code == 0

    def ask_when_empty(self, *prompts: list[int]) -> dict[str, Any]:
        """Returns the result of an empty host."""
        self.forget()
        return ask_after_reset(self.engine, *prompts)

    def asks_nothing(self) -> bool:
        """Returns whether the engine computes the prompts without a question, since the breaker is open."""
        before = self._refused()
        result = self.ask_when_empty(*PROMPTS)
        assert result["external"] == 0 and self.is_right(result)
        return self._refused() == before

    def _refused(self) -> int:
        """Returns the questions until now that were not asked."""
        self._turns.pass_by(PUBLISHED)
        return self.second.daemon.snapshot().fleet.refused

    def is_right(self, result: dict[str, Any]) -> bool:
        """Returns whether the answers are those of the first engine."""
        assert texts(result) == texts(self.own)
        assert distance(result, self.own) < _ROUNDING
        return True


def is_open(scene: Scene) -> bool:
    """Returns whether the worker of a host uses the store."""
    return scene.daemon.snapshot().fleet.standing == "open"
