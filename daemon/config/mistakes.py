"""Collects what is wrong with a configuration, so that an administrator learns all of it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pagetier.shm.log_format import event


class ConfigError(Exception):
    """The configuration is invalid; the message is for administrators and names the source of the value."""


def log_lines(error: object) -> list[str]:
    """Returns the message of an error as lines of a log, one for each mistake."""
    return [line.strip() for line in str(error).splitlines()] or [""]


def log_each(write: Callable[..., None], error: object, kind: str) -> None:
    """Logs the message of an error by a method of a logger, each mistake in a line of its own with this event."""
    for line in log_lines(error):
        write("%s", line, extra=event(kind))


class Mistakes:
    """Collects errors of some kinds until raise_all().

    Args:
        kinds: The kinds.
    """

    def __init__(self, *kinds: type[Exception]) -> None:
        self._kinds = kinds
        self._found: list[Exception] = []
        self._settings: set[str] = set()

    @contextmanager
    def noted(self, setting: str = "") -> Iterator[None]:
        """Collects an error that the block raises.

        Args:
            setting: The setting whose value is read; "" if that is not known.

        Yields:
            Nothing.
        """
        try:
            yield
        except self._kinds as error:
            self.note(error, setting)

    def note(self, error: Exception, setting: str = "") -> None:
        """Collects an error. setting: The setting whose value is wrong; "" if that is not known."""
        self._found.append(error)
        self._settings.add(setting)

    def may_explain(self, conflict: str) -> bool:
        """Returns whether a conflict between settings may end once what was collected is corrected."""
        return "" in self._settings or any(setting in conflict for setting in self._settings)

    def __len__(self) -> int:
        """Returns the number of errors that were collected."""
        return len(self._found)

    def raise_all(self) -> None:
        """Raises what was collected: the only error itself, or one of the kind of the last one that has all texts."""
        if not self._found:
            return
        *others, last = self._found
        if not others:
            raise last
        # The caller may add what helps against the last one.
        raise type(last)("\n  ".join((f"{len(self)} mistakes:", *map(str, self._found)))) from last
