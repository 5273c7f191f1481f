"""An asyncio loop whose time is its own: a timer fires when all before it have, however slow the machine is."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Patience(selectors.DefaultSelector):
    """Never waits: what nobody is ready for by now is passed over, and its time with it."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0:
            self.passed += timeout
        return ready


class OwnTimeLoop(asyncio.SelectorEventLoop):
    """For what is told by descriptors that are ready at once, and by timers. Nothing else may be waited for."""

    def __init__(self) -> None:
        self._patience = _Patience()
        super().__init__(self._patience)

    def time(self) -> float:
        """Seconds of its own."""
        return self._patience.passed

    def passes(self, seconds: float) -> None:
        """What is done takes so long."""
        self._patience.passed += seconds
