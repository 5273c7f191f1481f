"""A load: its handle, and the job that copies pinned pages layer by layer.

1. pinned_source() retains the arena, which stays mapped until the load has ended, and pins the pages for the load
   itself, in the engine's thread: the engine may release its match as soon as the load was started.
2. next() returns one layer after the other, and many may be in flight. An engine waits for the event of the layer that
   it needs, so it computes with the first layers while the last are copied.
3. completed() counts the layers. The pages stay pinned until the last event has come, also after a cancel: the device
   reads their frames until then, and the daemon could give the frames of an unpinned page to another one.

After a failure of the device, whose events never come, they stay pinned until the process ends. If the process dies,
the daemon releases its pins; the pages are not changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from pagetier.client.arguments import seconds_of
from pagetier.client.async_copy.arena_pages import Source
from pagetier.client.async_copy.job import CopyJob, Counts, Piece
from pagetier.kernels.device import Copy, DeviceError, Direction, EngineEvent, Event
from pagetier.shm.clock import Deadline


def _pieces_of(source: Source, layers: int) -> Iterator[Piece]:
    """Yields the copies of each layer."""
    tokens, transfer = source.tokens, source.transfer
    for planes, row_bytes in transfer.by_layer(layers):
        yield Piece((Copy(Direction.LOAD, transfer, source.frames, planes),), tokens * row_bytes)


class LoadingJob(CopyJob):
    """A load of a source, or of nothing. Each layer is one piece.

    Attributes:
        pages: The number of pages.
        layers: The number of layers.
        reason: Why the load failed, or empty.
        span: See LoadHandle.span.
    """

    has_work_after_each_piece = False  # who needs a layer waits for its event

    def __init__(self, source: Source | None, layers: int, counts: Counts, after: object = None) -> None:
        super().__init__(after)
        self.pages = len(source.frames.table) if source else 0
        self.layers = layers
        self.reason = ""
        self._source = source
        self._counts = counts
        self._events: list[Event] = []
        self._pieces = _pieces_of(source, layers) if source is not None else iter(())
        self._started = self._completed = 0
        self._valid = layers
        self._ended = source is None
        self._began_ns = 0
        self.span = math.inf, -math.inf

    def event(self, layer: int) -> Event | None:
        """Returns the event of a layer, or None if the layer is not or cannot be enqueued."""
        return self._events[layer] if layer < min(len(self._events), self._valid) else None

    def decided(self, layer: int) -> bool:
        """Returns whether the layer is enqueued, or never will be."""
        return layer < len(self._events) or self._ended or self._cancelled or bool(self.reason)

    def is_loaded(self, layer: int) -> bool:
        """Returns whether the layer is in the cache."""
        return layer < min(self._completed, self._valid)

    def prepare(self, now: float) -> bool:
        """Implements CopyJob.prepare(). A load can start at once."""
        return True

    def retry_after(self, now: float) -> float:
        """Implements CopyJob.retry_after()."""
        return 0.0

    def next(self) -> Piece | None:
        """Implements CopyJob.next(). Returns the next layer."""
        source = self._source
        if source is None or self._cancelled or self.reason or self._started == self.layers:
            self._end_if_completed()
            return None
        if not self._started:
            self._began_ns = time.monotonic_ns()
        self._started += 1
        return next(self._pieces)

    def enqueued(self, event: Event) -> None:
        """Implements CopyJob.enqueued(). Threads that wait for this layer wait for its event from now on."""
        self._events.append(event)
        self._notify()

    def completed(self, began: float, ended: float) -> None:
        """Implements CopyJob.completed(). A layer is in the cache."""
        self._completed += 1
        self.span = min(self.span[0], began), ended
        self._end_if_completed()

    def piece_failed(self, reason: str) -> None:
        """Implements CopyJob.piece_failed(). Layers that were enqueued before are valid."""
        if not self.reason:
            self._valid = min(self._valid, len(self._events))
            self._give_up(reason)

    def device_failed(self, reason: str) -> bool:
        """Implements CopyJob.device_failed(). The pages stay pinned, and mapped, if the device may still read them."""
        self._give_up(reason)
        if self._source is not None and self._started > self._completed:
            self._source.arena.keep()
            return True
        self._end_if_completed()
        return False

    def _give_up(self, reason: str) -> None:
        self._counts.failed += self.pages
        self.reason = reason
        self._notify()

    def _end_if_completed(self) -> None:
        """Releases the source when no further layers start and all enqueued ones have completed."""
        source = self._source
        over = self._started == self.layers or self._cancelled or self.reason
        if source is None or not over or self._started > self._completed:
            return
        self._source = None
        self._count(source)
        source.release()  # before the load counts as ended: a thread that waits for the end may close the client
        self._ended = True
        self._notify()

    def _count(self, source: Source) -> None:
        if not self.reason and self._completed == self.layers:
            nbytes = source.transfer.nbytes
            self._counts.loaded += nbytes
            source.session.count_loaded(self.pages, nbytes)
            source.session.count_time(time.monotonic_ns() - self._began_ns, 0)
        elif not self.reason:
            self._counts.cancelled += self.pages


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
    def span(self) -> tuple[float, float]:
        """From when and until when layers were copied so far, by the clock; infinite while that is not known.

        It is without the wait for the event given as `after`.
        """
        return self._job.span

    @property
    def ended(self) -> bool:
        """Whether the load no longer writes to the cache, also after cancel().

        If the device failed, this stays False.
        """
        return self._job.ended

    def wait_ended(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until the load has ended, and returns whether it has."""
        seconds = seconds_of("timeout", timeout)
        return self._job.ended or self._job.wait_until(lambda: self._job.ended, seconds)

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
        deadline = Deadline(seconds_of("timeout", timeout))
        if self._is_decided(layer):
            return self._valid
        self._job.wait_until(lambda: self._job.decided(layer), deadline.left)
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
        seconds = seconds_of("timeout", timeout)
        if self._is_decided(layer):
            return self._valid
        self._job.wait_until(lambda: self._job.decided(layer), seconds)
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
