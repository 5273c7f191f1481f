"""Identifies the weights of an engine in the background, since that may read all of them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pagetier.client.engines.file_digests import ChangedError, FileDigests
from pagetier.client.engines.weights import ModelIdentity, UnidentifiedError, WeightsSource, bytes_to_read, identify
from pagetier.shm.safe_event import SafeEvent

_LOWEST_PRIORITY: Final = 19
_LOGGED_BYTES: Final = 1 << 30


class WeightsThread:
    """Identifies weights.

    Args:
        sources: Where the weights are from: those of the model, then those of a draft model.
        digests: Determines the digests of files.
        log: The engine's log.
        place: The engine's option that contains the setting `weights`.
    """

    def __init__(self, sources: Sequence[WeightsSource], digests: FileDigests, log: logging.Logger, place: str) -> None:
        self._sources, self._digests = tuple(sources), digests
        self._log, self._place = log, place
        self._title = sources[0].title
        self._identity = ""
        self._ended = SafeEvent()
        # A daemon thread: an engine that stops does not wait until all weights are read.
        threading.Thread(target=self._run, name="pagetier-weights", daemon=True).start()

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds, and returns whether the thread has ended."""
        return self._ended.wait(timeout)

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
        except (UnidentifiedError, ChangedError, OSError) as error:
            self._log.warning(
                'pagetier shares no pages of %s with other engines: %s; set "weights" in %s',
                self._title,
                error,
                self._place,
            )
        finally:
            self._ended.set()

    def _identify(self) -> None:
        nbytes = bytes_to_read(self._sources, self._digests)
        if nbytes >= _LOGGED_BYTES:
            gib = nbytes / 2**30
            self._log.info("pagetier reads %.1f GiB of weights once to identify them, and caches nothing before", gib)
        self._identity = identify(self._sources, self._digests)
