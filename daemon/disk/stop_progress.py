"""Shows how far a stop is with writing unwritten pages: in the log, on a terminal and in `pagetier stats`."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pagetier.daemon.common.progress import Progress, no_progress, progress_for_people
from pagetier.daemon.status.phase import Phase, PhaseProgress
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm.log_format import event
from pagetier.shm.protocol import Saved
from pagetier.shm.units import counted, format_size, spell_duration

log = logging.getLogger("pagetierd.disk")


class StopProgress:
    """The progress of one stop, a context manager. Shows nothing if all pages are on disk already."""

    def __init__(self, publisher: StatusPublisher, timeout: float) -> None:
        self._publisher = publisher
        self._timeout = timeout
        self._total = 0
        self._show: Progress = no_progress
        self._shown = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.close()

    def show(self, saved: Saved) -> Saved:
        """Shows and publishes the progress, and returns it."""
        if saved.bytes and not self._total:
            self._begin(saved)
        self._total = max(self._total, saved.bytes)
        if self._total:
            done = self._total - saved.bytes
            self._publisher.note_progress(PhaseProgress(Phase.STOPPING, done, self._total))
            self._show(done, self._total)
        return saved

    def _begin(self, saved: Saved) -> None:
        pages = f"{counted(saved.pages, 'page')} ({format_size(saved.bytes)})"
        most = spell_duration(round(self._timeout, 1))
        facts = event("stopping", pages=saved.pages, bytes=saved.bytes)
        log.info("stopping: %s to write, at most %s", pages, most, extra=facts)
        self._show = self._shown.enter_context(progress_for_people("unwritten pages", log))
