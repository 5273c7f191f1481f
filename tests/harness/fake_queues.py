"""Queues of a simulated device: work is done later, in any order that the marks allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np

from copy_case_memory import host_copied_pages, moved_bytes
from pagetier.kernels.device import Copy
from pagetier.kernels.gpu.copy_paths import Moves, Queue


class Mark:
    """A position in a queue; `come` after the queue has passed it."""

    def __init__(self) -> None:
        self.come = False


class LateQueue:
    """Keeps its work until step(). An item of work returns whether it could be done."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._work: deque[Callable[[], bool]] = deque()

    def mark(self) -> Mark:
        mark = Mark()
        self.do(lambda: setattr(mark, "come", True))
        return mark

    def after(self, mark: object) -> None:
        assert isinstance(mark, Mark)
        self._work.append(lambda: mark.come)

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()

    def do(self, work: Callable[[], None]) -> None:
        def done() -> bool:
            work()
            return True

        self._work.append(done)

    def step(self) -> bool:
        """Does the next item of work. Returns False if there is none, or it waits for another queue."""
        done = bool(self._work) and self._work[0]()
        if done:
            self._work.popleft()
        return done


class LateDevice:
    """Several queues that advance at random."""

    def __init__(self, seed: int, queues: int = 2) -> None:
        self.rng = np.random.default_rng(seed)
        self.queues = [LateQueue(number) for number in range(queues)]
        odds = self.rng.choice([1, 4, 100], queues)  # some queues are much faster than others
        self._odds = odds / odds.sum()

    def go_on(self, steps: int) -> None:
        """Attempts `steps` steps, each of a random queue."""
        for _ in range(steps):
            self._some(1)[0].step()

    def finish(self) -> None:
        """Does all work that can be done, in random order."""
        while any(queue.step() for queue in self._some(len(self.queues))):
            pass

    def _some(self, count: int) -> list[LateQueue]:
        return [self.queues[at] for at in self.rng.choice(len(self.queues), count, replace=False, p=self._odds)]

    def memcpy(self, moves: Moves, queue: Queue) -> None:
        """Enqueues each move separately, in random order; other queues advance between them."""
        order = self.rng.permutation(len(moves.nbytes))
        late = self.queues[queue.handle]
        late.do(lambda: all_moved(moves, order.tolist()))
        self.go_on(int(self.rng.integers(4)))


class LateKernels:
    """Makes copies by the host path when their queue reaches them."""

    def __init__(self, device: LateDevice) -> None:
        self._device = device

    def enqueue_pages(self, copy: Copy, pages: range, address: int, queue: Queue) -> None:
        assert pages.start % 16 == 0
        self._device.queues[queue.handle].do(partial(host_copied_pages, copy, pages, address))
        self._device.go_on(int(self._device.rng.integers(4)))


def all_moved(moves: Moves, order: list[int]) -> None:
    """Makes all moves in this order."""
    for at in order:
        moved_bytes(moves.targets[at], moves.sources[at], moves.nbytes[at])
