"""Identifies the weights of an engine in the background, since that may read all of them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from pagetier.client.engines.file_digests import ChangedError, FileDigests
from pagetier.client.engines.switch import SettingsOrigin
from pagetier.client.engines.unsupported import reported_as_unsupported
from pagetier.client.engines.weights import ModelIdentity, UnidentifiedError, WeightsSource, bytes_to_read, identify
from pagetier.shm.safe_event import SafeEvent
from pagetier.shm.units import format_size

_LOWEST_PRIORITY: Final = 19


class WeightsThread:
    """Identifies weights.

    Args:
        sources: Where the weights are from: those of the model, then those of a draft model.
        digests: Determines the digests of files.
        log: The engine's log.
        origin: Where the engine's settings are from, such as the setting `weights`.
        identified: Called once with the identity, in the thread. An exception of it is logged.
    """

    def __init__(
        self,
        sources: Sequence[WeightsSource],
        digests: FileDigests,
        log: logging.Logger,
        origin: SettingsOrigin,
        identified: Callable[[ModelIdentity], None],
    ) -> None:
        self._sources, self._digests = tuple(sources), digests
        self._log, self._origin = log, origin
        self._identified = identified
        self._title = sources[0].title
        self._identity, self._unread = "", 0
        self._ended = SafeEvent()
        # A daemon thread: an engine that stops does not wait until all weights are read.
        threading.Thread(target=self._run, name="pagetier-weights", daemon=True).start()

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds, and returns whether the thread has ended."""
        return self._ended.wait(timeout)

    def log_unless_ended(self) -> None:
        """Logs what the engine still has to wait for before it caches anything."""
        if not self.ended:
            unread = self._unread  # the thread may count them now
            reads = f"computes the digest of {format_size(unread)} of weights of {self._title}, once on this machine"
            self._log.info(
                "pagetier is on, and caches nothing yet: it %s, and attaches when that is done%s",
                reads if unread else f"identifies the weights of {self._title}",
                self._origin.remark,
            )

    @property
    def ended(self) -> bool:
        """Whether the thread has ended."""
        return self._ended.is_set()

    @property
    def identity(self) -> ModelIdentity:
        """The identity of the model once the thread has ended."""
        return ModelIdentity(self._identity, self._title)

    def _run(self) -> None:
        with suppress(OSError):  # on Linux this sets the priority of this thread only
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        try:
            self._identify()
            with reported_as_unsupported(self._log):
                self._identified(self.identity)
        finally:
            self._ended.set()

    def _identify(self) -> None:
        try:
            self._unread = bytes_to_read(self._sources, self._digests)
            self._identity = identify(self._sources, self._digests)
        except (UnidentifiedError, ChangedError, OSError) as error:
            self._log.warning(
                'pagetier shares no pages of %s with other engines: %s; set "weights" in %s',
                self._title,
                error,
                self._origin.place,
            )
