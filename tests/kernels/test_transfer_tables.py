"""A transfer in the form that copies take: its table of planes, the planes of layers, its bytes and its references."""

from __future__ import annotations

import numpy as np

from page_of_ranks import joint_memory, separate_memory, slots_of
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.tables import PLANE, TOKENS
from pagetier.kernels.layout.transfer import PagedCache


def test_the_table_of_planes() -> None:
    (raw_k, raw_v), _, cache = separate_memory(1, 2, 5)
    page_layout = PageLayout.of_model(cache, 4, 8, 1)
    its = PagedCache(cache, page_layout, Shard(3, 4)).loading(slots_of(0, 4)[1])
    head = 4 * 10
    assert its.planes.tolist() == [
        (raw_k.ctypes.data, 60, 10, 30, 6 * head, head, 2, 10),
        (raw_v.ctypes.data, 60, 10, 30, 320 + 6 * head, head, 2, 10),
    ]
    assert its.planes.dtype == PLANE
    assert its.planes.flags.c_contiguous
    assert (its.page_bytes, its.device, its.nbytes) == (page_layout.nbytes, "cpu", 2 * 2 * 4 * 10)


def test_kernels_on_a_device_find_the_fields_where_they_read_them() -> None:
    """triton_kernels.py reads the tables as plain numbers in this order."""
    assert PLANE.names == ("base", "block", "token", "head", "at", "page_head", "heads", "width")
    assert TOKENS.names == ("position", "first", "end")


def test_rows_of_some_layers() -> None:
    one = [np.zeros((2, 9, 3, 1, 4), np.uint8) for _ in range(3)]
    cache = engine_layouts.kv_first(one)
    its = PagedCache(cache, PageLayout.of(cache, 3)).loading(slots_of(0, 3)[1])
    assert its.layers.tolist() == [0, 0, 1, 1, 2, 2]
    assert its.planes_of(range(3)) == range(6)
    assert its.planes_of(range(1, 2)) == range(2, 4)
    assert its.planes_of(range(2, 2)) == range(4, 4)
    assert its.planes_of(range(2, 9)) == range(4, 6)


def test_bytes_that_move() -> None:
    _, _, cache = joint_memory(2, 2, 5)
    paged = PagedCache(cache, PageLayout.of(cache, 4))
    slots = slot_map(range(4), 3, 4, 3, tokens=range(1, 10))
    token = 2 * 2 * 2 * 10
    assert paged.loading(slots).nbytes == 9 * token
    assert paged.loading(slots.without([False, True, False])).nbytes == 5 * token


def test_memory_lives_as_long_as_its_copies() -> None:
    memory, _, cache = joint_memory(2, 2, 5)
    transfer = PagedCache(cache, PageLayout.of(cache, 4)).loading(slots_of(0, 4)[1])
    assert any(np.shares_memory(owner, memory[0]) for owner in transfer.owners)
