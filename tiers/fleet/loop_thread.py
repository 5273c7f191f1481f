"""An event loop on a thread of its own, for a library that answers into the loop from which it was asked."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from pagetier.tiers.base import TierError

_T = TypeVar("_T")


class _SharedLoop(asyncio.SelectorEventLoop):
    """An event loop that is closed when nothing refers to it: a library may answer after its thread has ended."""

    def __del__(self) -> None:
        self.close()


class LoopThread:
    """Runs coroutines for other threads. Thread-safe.

    A loop that is closed at the end of a call makes the library print "Event loop is closed" for each answer that
    comes later, so this one stays open as long as the library may answer.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = _SharedLoop()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Returns the result of a coroutine, or raises its error. Raises TierError if this is closed before."""
        with self._lock:
            if self._closed:
                coroutine.close()
                raise TierError("the store is closed")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise TierError("the store was closed before it answered") from error

    def close(self) -> None:
        """Cancels all coroutines, whose callers get a TierError, and ends the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def gathered(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Returns the results of all coroutines. The first error is raised at once and cancels the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
