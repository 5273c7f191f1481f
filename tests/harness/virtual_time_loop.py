"""An asyncio loop with virtual time: a timer fires after all earlier ones, however slow the machine is."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Patience(selectors.DefaultSelector):
    """A selector that waits for no timeout: if no descriptor is ready, it advances the virtual time by it."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None and timeout > 0:
            self.passed += timeout
        return ready


class OwnTimeLoop(asyncio.SelectorEventLoop):
    """A loop for code that depends only on descriptors that are ready at once, and on timers."""

    def __init__(self) -> None:
        self._patience = _Patience()
        super().__init__(self._patience)

    def time(self) -> float:
        """Returns the virtual time in seconds."""
        return self._patience.passed

    def passes(self, seconds: float) -> None:
        """Advances the virtual time, as if the running code took so long."""
        self._patience.passed += seconds
