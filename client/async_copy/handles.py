"""A store that goes on by itself, as the engine sees it."""

from __future__ import annotations

import time

from pagetier.client.async_copy.load_job import LoadingJob
from pagetier.client.async_copy.store_job import StoringJob
from pagetier.client.reservation import Outcome, StoreResult
from pagetier.kernels.device import DeviceError, EngineEvent


class StoreHandle:
    """Pages on their way out of the engine's cache. Made by Copier.store; from any thread.

    Who drops it stops nothing. Until it is ready the blocks keep their content, unless it is cancelled.
    """

    def __init__(self, job: StoringJob) -> None:
        self._job = job

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once, with what is final."""
        return self._job.decided or self._job.foreign

    def wait(self, timeout: float) -> StoreResult:
        """What became of the pages, after at most `timeout` seconds. Those that are not finished by then are pending.

        May be called again. In a forked child everything is refused.
        """
        if self._job.foreign:
            refused = bytes([Outcome.REFUSED]) * len(self._job.result)
            return StoreResult(refused, "it was begun in another process")
        self._job.wait_until(lambda: self._job.decided, timeout)
        return self._job.result

    @property
    def ended(self) -> bool:
        """Whether nothing of it reads the cache any more: also after cancel(). Never, if the device failed."""
        return self._job.ended

    def wait_ended(self, timeout: float) -> bool:
        """Waits for that, at most `timeout` seconds."""
        return self._job.ended or self._job.wait_until(lambda: self._job.ended, timeout)

    def cancel(self) -> None:
        """Gives up all pages that are not readable when this returns: their blocks may have other content from then on.

        Their memory stays until it has ended. Does nothing once it is ready.
        """
        self._job.cancel()

    def __repr__(self) -> str:
        return f"<StoreHandle {'ready' if self.ready else 'on its way'}, {self._job.result!r}>"


class LoadHandle:
    """Pages on their way into the engine's cache, layer by layer. Made by Copier.load; from any thread.

    Who drops it stops nothing. In a forked child nothing of it is ever ready.

    pages: how many from the first one asked for on; what is behind them is a miss. With 0 every layer is ready.
    layers: of this rank's cache.
    """

    def __init__(self, job: LoadingJob, gate: EngineEvent | None = None) -> None:
        self.pages, self.layers = job.pages, job.layers
        self._job, self._gate = job, gate

    @property
    def failed(self) -> str:
        """Why layers that are not ready never will be: the device failed, or the event to come after; else empty."""
        return self._job.reason or (self._gate.reason if self._gate is not None else "")

    @property
    def ended(self) -> bool:
        """Whether nothing of it writes to the cache any more: also after cancel(). Never, if the device failed."""
        return self._job.ended

    def wait_ended(self, timeout: float) -> bool:
        """Waits for that, at most `timeout` seconds."""
        return self._job.ended or self._job.wait_until(lambda: self._job.ended, timeout)

    def ready(self, layer: int) -> bool:
        """Whether a layer of all its pages is in the cache. Waits for nobody."""
        if self._settled(layer):
            return self._sound
        event = self._job.event(layer)
        try:
            return event is not None and not self._job.foreign and event.done() and self._sound
        except DeviceError:
            return False

    def wait(self, layer: int, timeout: float) -> bool:
        """Waits for a layer, at most `timeout` seconds. False also where it will never come."""
        if self._settled(layer):
            return self._sound
        ends = time.monotonic() + timeout
        self._job.wait_until(lambda: self._job.decided(layer), timeout)
        event = self._job.event(layer)
        if event is None or self._job.foreign:
            return False
        try:
            return event.wait(max(0.0, ends - time.monotonic())) and self._sound
        except DeviceError:
            return False

    def hold(self, stream: object, layer: int, timeout: float) -> bool:
        """What is given to the engine's stream from now on begins when the layer is in the cache.

        Waits, at most `timeout` seconds, only until its copies are enqueued. False if they are not by then, or will
        not be: then nothing is held. Raises ValueError for what is no stream.

        True says that the copies are enqueued, not that they succeed: should they fail, what is held begins without the
        layer. Who uses what it computed looks at `failed` behind it.
        """
        if self._settled(layer):
            return self._sound
        self._job.wait_until(lambda: self._job.decided(layer), timeout)
        event = self._job.event(layer)
        if event is None or not self._sound:
            return False
        try:
            event.hold(stream)
        except DeviceError:
            return False
        return True

    def cancel(self) -> None:
        """Begins no more layers; see `ended`. Those that were enqueued may still become ready."""
        self._job.cancel()

    def _settled(self, layer: int) -> bool:
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer {layer} of {self.layers}")
        return not self.pages or self._job.has_landed(layer)

    @property
    def _sound(self) -> bool:
        """Whether what has come counts. To be asked behind it: a gate is lost before an event behind it comes."""
        return not self._job.foreign and not (self._gate is not None and self._gate.reason)

    def __repr__(self) -> str:
        state = f"failed: {self.failed}" if self.failed else "ended" if self.ended else "on its way"
        return f"<LoadHandle of {self.pages} pages, {self.layers} layers, {state}>"
