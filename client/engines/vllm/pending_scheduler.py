"""The scheduler's half before it exists: its namespaces are unknown until the weights are identified."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from pagetier.client.client import Client
from pagetier.client.engines.vllm.file_digests import ChangedError, FileDigests
from pagetier.client.engines.vllm.namespace import ModelIdentity
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.weights import UnidentifiedError, WeightsSource, bytes_to_read, identify

log = logging.getLogger("vllm.pagetier")

_LOWEST_PRIORITY: Final = 19
_LOGGED_BYTES: Final = 1 << 30


class WeightsThread:
    """Identifies the engine's weights in the background.

    Args:
        sources: Where the weights are from: those of the model, then those of a draft model.
        digests: Determines the digests of files.
    """

    def __init__(self, sources: Sequence[WeightsSource], digests: FileDigests) -> None:
        self._sources, self._digests = tuple(sources), digests
        self._title = sources[0].title
        self._identity = ""
        self._ended = threading.Event()
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
            log.warning(
                'pagetier shares no pages of %s with other engines: %s; set "weights" in kv_connector_extra_config',
                self._title,
                error,
            )
        finally:
            self._ended.set()

    def _identify(self) -> None:
        nbytes = bytes_to_read(self._sources, self._digests)
        if nbytes >= _LOGGED_BYTES:
            log.info(
                "pagetier reads %.1f GiB of weights once to identify them, and caches nothing before", nbytes / 2**30
            )
        self._identity = identify(self._sources, self._digests)


class PendingScheduler:
    """The scheduler's half to be. Called by the one thread of vLLM's scheduler; only wait() blocks.

    Args:
        weights: Identifies the weights.
        client: The client of the half.
        opened: Returns the half for the identity of the model.
    """

    def __init__(
        self, weights: WeightsThread, client: Client, opened: Callable[[ModelIdentity], SchedulerHalf]
    ) -> None:
        self._weights, self._client, self._opened = weights, client, opened
        self._reset = False

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds, and returns whether the half can be opened."""
        return self._weights.wait(timeout)

    @property
    def ready(self) -> bool:
        """Whether the half can be opened."""
        return self._weights.ended

    @property
    def identity(self) -> ModelIdentity:
        """The identity of the model once the half can be opened."""
        return self._weights.identity

    def open(self) -> SchedulerHalf:
        """Returns the half, which owns the client from now on."""
        half = self._opened(self._weights.identity)
        if self._reset:
            half.renew()
        return half

    def renew(self) -> None:
        """Makes the half share nothing, because the engine's weights may differ from its files."""
        self._reset = True

    def close(self) -> None:
        """Closes the client. The thread reads until it has all of the weights, or the process ends."""
        self._client.close()
