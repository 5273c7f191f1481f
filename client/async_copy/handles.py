"""Handles of asynchronous stores and loads, by which an engine polls, waits and cancels."""

from __future__ import annotations

from pagetier.client.async_copy.load_job import LoadingJob
from pagetier.client.async_copy.store_job import StoringJob
from pagetier.client.store_result import Outcome, StoreResult
from pagetier.kernels.device import DeviceError, EngineEvent
from pagetier.shm.clock import Deadline


class StoreHandle:
    """A store of pages from the engine's cache. Made by AsyncCopier.store(). Thread-safe.

    Dropping the handle does not cancel the store. The content of the blocks must not change until the store is ready or
    cancelled.
    """

    def __init__(self, job: StoringJob) -> None:
        self._job = job

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once, with the final result."""
        return self._job.decided or self._job.foreign

    def wait(self, timeout: float) -> StoreResult:
        """Returns what became of each page, after waiting at most `timeout` seconds for the final result.

        Pages that are not finished by then are pending. May be called again. A timeout above 0 begins a delayed store.
        In a forked child all pages are rejected.
        """
        if self._job.foreign:
            refused = bytes([Outcome.REFUSED]) * len(self._job.result)
            return StoreResult(refused, "the store was started in another process")
        if timeout > 0:
            self.begin()
        self._job.wait_until(lambda: self._job.decided, timeout)
        return self._job.result

    def begin(self) -> None:
        """Begins a delayed store. Never waits, and has no effect on one that has begun."""
        self._job.begin_now()

    @property
    def ended(self) -> bool:
        """Whether the store no longer reads the cache, also after cancel(). If the device failed, this stays False."""
        return self._job.ended

    def wait_ended(self, timeout: float) -> bool:
        """Returns whether the store has ended, after waiting for it at most `timeout` seconds.

        A timeout above 0 begins a delayed store.
        """
        if timeout > 0:
            self.begin()
        return self._job.ended or self._job.wait_until(lambda: self._job.ended, timeout)

    def cancel(self) -> None:
        """Abandons all pages that are not readable when the call returns: their blocks may then be overwritten.

        The memory of the blocks must exist until the store has ended. Has no effect once the store is ready.
        """
        self._job.cancel()

    def __repr__(self) -> str:
        return f"<StoreHandle {'ready' if self.ready else 'in progress'}, {self._job.result!r}>"


class LoadHandle:
    """A load of pages into the engine's cache, layer by layer. Made by AsyncCopier.load(). Thread-safe.

    Dropping the handle does not cancel the load. In a forked child no layer is ever ready.

    Attributes:
        pages: The number of pages that are loaded, from `start_page` on; pages after them are misses. If it is 0, every
            layer counts as ready.
        layers: The number of layers in this rank's cache.
    """

    def __init__(self, job: LoadingJob, gate: EngineEvent | None = None) -> None:
        self.pages, self.layers = job.pages, job.layers
        self._job, self._gate = job, gate

    @property
    def failed(self) -> str:
        """Why layers that are not ready will never be: the device or the event given as `after` failed.

        Empty otherwise.
        """
        return self._job.reason or (self._gate.reason if self._gate is not None else "")

    @property
    def ended(self) -> bool:
        """Whether the load no longer writes to the cache, also after cancel().

        If the device failed, this stays False.
        """
        return self._job.ended

    def wait_ended(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until the load has ended, and returns whether it has."""
        return self._job.ended or self._job.wait_until(lambda: self._job.ended, timeout)

    def ready(self, layer: int) -> bool:
        """Returns whether a layer of all pages is in the cache, without waiting.

        Raises ValueError for an unknown layer.
        """
        if self._is_decided(layer):
            return self._valid
        event = self._job.event(layer)
        try:
            return event is not None and not self._job.foreign and event.done() and self._valid
        except DeviceError:
            return False

    def wait(self, layer: int, timeout: float) -> bool:
        """Returns whether a layer of all pages is in the cache, after waiting for it at most `timeout` seconds.

        Returns False at once if the layer will never be loaded. Raises ValueError for an unknown layer.
        """
        if self._is_decided(layer):
            return self._valid
        deadline = Deadline(timeout)
        self._job.wait_until(lambda: self._job.decided(layer), timeout)
        event = self._job.event(layer)
        if event is None or self._job.foreign:
            return False
        try:
            return event.wait(deadline.left) and self._valid
        except DeviceError:
            return False

    def make_stream_wait(self, stream: object, layer: int, timeout: float) -> bool:
        """Makes further work on the engine's stream wait until a layer is in the cache.

        The call itself waits, at most `timeout` seconds, only until the copies of the layer are enqueued. Raises
        ValueError if `stream` is not a stream of the device, or for an unknown layer.

        Returns:
            Whether the stream waits. False means that the copies were not enqueued in time or never will be. True means
            that the copies are enqueued, not that they succeed: if they fail, the work starts without the layer, so an
            engine checks `failed` before it uses the results.
        """
        if self._is_decided(layer):
            return self._valid
        self._job.wait_until(lambda: self._job.decided(layer), timeout)
        event = self._job.event(layer)
        if event is None or not self._valid:
            return False
        try:
            event.make_stream_wait(stream)
        except DeviceError:
            return False
        return True

    def cancel(self) -> None:
        """Stops the load: no further layers are copied, see `ended`.

        Layers that are enqueued may still become ready.
        """
        self._job.cancel()

    def _is_decided(self, layer: int) -> bool:
        if not 0 <= layer < self.layers:
            raise ValueError(f"there is no layer {layer}: the cache has {self.layers}")
        return not self.pages or self._job.is_loaded(layer)

    @property
    def _valid(self) -> bool:
        """Whether loaded layers are valid.

        Read after a layer has completed: a failed event is recorded before later events.
        """
        return not self._job.foreign and not (self._gate is not None and self._gate.reason)

    def __repr__(self) -> str:
        state = f"failed: {self.failed}" if self.failed else "ended" if self.ended else "in progress"
        return f"<LoadHandle of {self.pages} pages, {self.layers} layers, {state}>"
