"""Measures how long commands to workers were in progress."""

from __future__ import annotations

from pagetier.daemon.common import loop_clock


class BusyTime:
    """A clock that runs while commands are in progress."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._before = 0.0

    def note(self, commands: int) -> None:
        """Sets the number of commands in progress."""
        if commands and self._since is None:
            self._since = loop_clock.now()
        elif not commands:
            self._before, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        return self._before + (loop_clock.now() - self._since if self._since is not None else 0.0)
