"""Identifies the weights of an engine in the background, since that may read all of them."""

from __future__ import annotations

import logging
import threading
from typing import Final

from pagetier.client.engines.vllm.file_digests import ChangedError, FileDigests
from pagetier.client.engines.vllm.namespace import ModelIdentity
from pagetier.client.engines.vllm.weights import UnidentifiedError, WeightsSource, bytes_to_read, identify

log = logging.getLogger("pagetier.sglang")

_LOGGED_BYTES: Final = 1 << 30


class IdentifyingThread:
    """Identifies weights.

    Args:
        source: Where the weights are from.
        digests: Determines the digests of files.
    """

    def __init__(self, source: WeightsSource, digests: FileDigests) -> None:
        self._source, self._digests = source, digests
        self._identity = ""
        self._ended = threading.Event()
        # A daemon thread: an engine that stops does not wait until all weights are read.
        threading.Thread(target=self._run, name="pagetier-weights", daemon=True).start()

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds, and returns whether the thread has ended."""
        return self._ended.wait(timeout)

    @property
    def identity(self) -> ModelIdentity | None:
        """The identity of the model; None until it is known. Its `weights` are empty if nothing identifies them."""
        return ModelIdentity(self._identity, self._source.title) if self._ended.is_set() else None

    def _run(self) -> None:
        try:
            self._identify()
        except (UnidentifiedError, ChangedError, OSError) as error:
            log.warning(
                'pagetier shares no pages of %s with other engines: %s; set "weights" in linker_extra_config',
                self._source.title,
                error,
            )
        finally:
            self._ended.set()

    def _identify(self) -> None:
        nbytes = bytes_to_read([self._source], self._digests)
        if nbytes >= _LOGGED_BYTES:
            gib = nbytes / 2**30
            log.info("pagetier reads %.1f GiB of weights once to identify them, and caches nothing before", gib)
        self._identity = identify([self._source], self._digests)
