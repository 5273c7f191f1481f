"""A simulated CUDA driver and the parts of torch.cuda that copies use. Enqueued work is done at once."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from copy_case_memory import moved_bytes
from pagetier.kernels.gpu.cuda_driver import BATCH

GLOBAL, RELAXED = 0, 2
INVALID = 1


class SimulatedDriver:
    """A simulated libcuda, as loaded by ctypes.

    Attributes:
        fail: The functions that return error 1.
        modes: The capture mode of each thread that changed it.
    """

    def __init__(self, fail: set[str] | None = None, lacks: set[str] | None = None) -> None:
        self.fail, self._lacks = fail or set(), lacks or set()
        self.calls: Counter[str] = Counter()
        self.modes: dict[int, int] = {}
        self.priorities: list[int] = []
        self.batches: list[tuple[int, Any]] = []
        self.same_addresses = 1
        self._batch = BATCH(self._memcpy_batch)

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu") or name in self._lacks:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            if name in self.fail:
                return INVALID
            getattr(self, "_" + name[2:], lambda *_: None)(*arguments)
            return 0

        return call

    @property
    def batch_address(self) -> int:
        """The address of cuMemcpyBatchAsync."""
        return ctypes.cast(self._batch, ctypes.c_void_p).value or 0

    def _GetErrorName(self, _: Any, text: Any) -> None:  # noqa: N802
        text._obj.value = b"CUDA_ERROR_OF_TESTS"

    def _GetProcAddress_v2(self, name: bytes, address: Any, version: Any, *_: Any) -> None:  # noqa: N802
        assert (name, version.value) == (b"cuMemcpyBatchAsync", 12080)
        address._obj.value = self.batch_address

    def _DeviceGetAttribute(self, answer: Any, *_: Any) -> None:  # noqa: N802
        answer._obj.value = self.same_addresses

    def _ThreadExchangeStreamCaptureMode(self, mode: Any) -> None:  # noqa: N802
        thread = threading.get_ident()
        self.modes[thread], mode._obj.value = mode._obj.value, self.modes.get(thread, GLOBAL)

    def _CtxGetStreamPriorityRange(self, least: Any, greatest: Any) -> None:  # noqa: N802
        least._obj.value, greatest._obj.value = 0, -5

    def _StreamCreateWithPriority(self, handle: Any, flags: Any, priority: Any) -> None:  # noqa: N802
        assert flags.value == 1
        self.priorities.append(priority.value)
        handle._obj.value = 0x1000 + len(self.priorities)

    def _MemcpyAsync(self, target: Any, source: Any, nbytes: Any, _: Any) -> None:  # noqa: N802
        moved_bytes(target.value, source.value, nbytes.value)

    def _memcpy_batch(self, *arguments: Any) -> int:
        targets, sources, sizes, count, attributes, which, sets, _, stream = arguments
        assert (sets, ctypes.c_size_t.from_address(which).value) == (1, 0)
        order, *places, flags = np.frombuffer(ctypes.string_at(attributes, 24), np.uint32).tolist()
        assert (order, places, flags) == (1, [0, 0, 0, 0], 1)
        if "cuMemcpyBatchAsync" in self.fail:
            return INVALID
        arrays = (np.frombuffer(ctypes.string_at(its, 8 * count), np.uint64) for its in (targets, sources, sizes))
        for run in zip(*arrays, strict=True):
            moved_bytes(*run)
        self.batches.append((count, stream))
        return 0


class SimulatedEvent:
    """An event that is complete after `queries_left` queries."""

    queries_left = 0

    def record(self, stream: Any) -> None:
        stream.journal.append("record")

    def query(self) -> bool:
        self.queries_left -= 1
        return self.queries_left < 0


class SimulatedStream:
    """Records the calls that it receives."""

    def __init__(self, handle: int, device: int = 0) -> None:
        self.handle, self.device = handle, device
        self.journal: list[Any] = []

    def wait_event(self, event: Any) -> None:
        self.journal.append(event)


class SimulatedTorch:
    """A replacement for the torch module. `streams` has all streams made.

    The next call raises `failure`, if it is set.
    """

    uint8 = torch.uint8
    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self) -> None:
        self.streams: list[SimulatedStream] = []
        self.room = 1 << 30
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            init=lambda: None,
            ExternalStream=self._stream,
            Event=SimulatedEvent,
            stream=self._current,
        )

    def empty(self, nbytes: int, dtype: Any, device: str) -> Any:
        assert device in ("cuda:0", "cpu")
        if nbytes > self.room:
            raise torch.OutOfMemoryError("out of memory")
        return torch.empty(nbytes, dtype=dtype)

    def _stream(self, handle: int, device: int) -> SimulatedStream:
        self.streams.append(SimulatedStream(handle, device))
        return self.streams[-1]

    @contextmanager
    def _current(self, _: Any) -> Iterator[None]:
        yield


def in_thread(work: Callable[[], Any]) -> Any:
    """Returns the result of `work`, called in another thread."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join()
    return answers[0]


def mode_after(library: SimulatedDriver, use: Callable[[], Any]) -> int:
    """Returns the capture mode of this thread after a call."""
    use()
    return mode_now(library)


def mode_now(library: SimulatedDriver) -> int:
    """Returns the capture mode of this thread."""
    return library.modes.get(threading.get_ident(), GLOBAL)


def raising(error: Exception) -> Callable[..., Any]:
    """Returns a function that raises this error."""

    def call(*_: Any) -> Any:
        raise error

    return call
