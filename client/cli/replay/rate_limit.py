"""How fast a replay goes."""

from __future__ import annotations

import time


class Pace:
    """So many steps a second at most, evenly; 0: as fast as it goes. Steps that were missed are not made up for."""

    def __init__(self, per_second: int) -> None:
        self.limited = per_second > 0
        self._seconds = 1 / per_second if per_second else 0.0
        self._next = 0.0

    def wait(self) -> None:
        """Waits until the next step may be taken."""
        if not self.limited:
            return
        now = time.monotonic()
        time.sleep(max(0.0, self._next - now))
        self._next = max(now, self._next) + self._seconds
