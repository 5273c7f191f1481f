"""Tests what a store of one page costs the copier's thread, in executed instructions of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from copying_world import PAGE_BLOCKS, CopyingWorld, Process, keys_of
from counted_instructions import instructions_of
from pagetier.kernels.config.copy_settings import CopySettings

SETTINGS: Final = CopySettings(reserve_timeout=1.0)
DELAY_S: Final = 0.003
MOST: Final = 4750  # in all steps of the thread: 4519 by CPython 3.11, and 4956 before


def test_a_store_of_a_page_costs_its_thread_few_instructions() -> None:
    world = CopyingWorld()
    process = Process(world, SETTINGS)
    queue = process.lanes[0]

    def stored(prompt: int) -> int:
        """Stores a page, and returns the instructions of all steps of the thread."""
        slots = process.cache.slots(list(range(PAGE_BLOCKS)))
        store = process.copier.store(keys_of(prompt, 1), slots, delay=DELAY_S)

        def later() -> None:
            world.now += DELAY_S

        changes: tuple[Callable[[], object], ...] = (lambda: None, later, process.answer, process.device.advance_all)
        executed = 0
        for change in changes:
            change()
            executed += instructions_of(queue.step)
        assert store.ended and store.wait(0.0).stored == 1
        return executed

    stored(1)  # fills caches
    executed = stored(2)
    assert 0 < executed < MOST
    world.memory.close()
