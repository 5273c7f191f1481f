"""The error for what is not cached, and its line in the engine's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pagetier.shm.errors import PagetierError


class UnsupportedError(PagetierError):
    """A model or a setting whose state is not cached. The message is logged."""


@contextmanager
def reported_as_unsupported(log: logging.Logger) -> Iterator[None]:
    """Logs an exception: an unexpected model must not prevent an engine from starting."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        log_unsupported(log, error)


def log_unsupported(log: logging.Logger, error: Exception) -> None:
    """Logs why nothing is cached. The trace of an error that is not foreseen is in the debug log."""
    foreseen = isinstance(error, (PagetierError, ValueError))
    log.warning("pagetier caches nothing: %s", error if foreseen else repr(error))
    log.debug("pagetier caches nothing because of this exception", exc_info=error)
