"""Advises the kernel about the arena before it is populated: no core dumps, huge pages, NUMA nodes.

Index and lock words always ask for huge pages, when they are mapped.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable

import msgspec

from pagetier.daemon.host.host import Host
from pagetier.shm.lazy_memory import LazyMemory

_MADV_HUGEPAGE = 14
_MADV_DONTDUMP = 16
_MPOL_INTERLEAVE = 3
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
# glibc has no mbind(), and libnuma is often not installed.
_SYS_MBIND = {"x86_64": 237, "aarch64": 235, "riscv64": 235, "loongarch64": 235, "ppc64le": 259, "s390x": 268}


class Region(msgspec.Struct, frozen=True):
    """A mapping of this process.

    Attributes:
        address: Its address, a multiple of the page size.
        length: Its bytes.
    """

    address: int
    length: int


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one advice to the kernel.

    Attributes:
        what: The subject of the advice.
        taken: Whether the kernel accepted it.
        note: For the log: what is in force now, or why the advice was not accepted.
    """

    what: str
    taken: bool
    note: str


def exclude_from_dumps(region: Region) -> None:
    """Excludes `region` from this process's core dumps. Raises OSError."""
    _madvise(region, _MADV_DONTDUMP)


def ask_huge_pages(region: Region) -> None:
    """Requests huge pages for when this process touches `region`.

    Raises OSError, for example if the kernel has none.
    """
    _madvise(region, _MADV_HUGEPAGE)


def interleave(region: Region, nodes: tuple[int, ...]) -> None:
    """Interleaves the pages of the shared memory at `region` over `nodes`, no matter which process touches them first.

    Pages that exist already stay where they are.

    Raises:
        OSError: The system call is unknown for this machine or failed, for example because a container forbids it.
    """
    number = _SYS_MBIND.get(platform.machine())
    if number is None:
        raise OSError(0, f"the system call for memory policies on {platform.machine()} is unknown")
    words = (ctypes.c_ulong * (max(nodes) // _WORD_BITS + 1))()
    for node in nodes:
        words[node // _WORD_BITS] |= 1 << (node % _WORD_BITS)
    # The kernel expects the number of bits plus one.
    bits = len(words) * _WORD_BITS + 1
    _check(
        _libc().syscall(
            ctypes.c_long(number),
            ctypes.c_void_p(region.address),
            ctypes.c_ulong(region.length),
            ctypes.c_long(_MPOL_INTERLEAVE),
            words,
            ctypes.c_ulong(bits),
            ctypes.c_ulong(0),
        )
    )


def advise(region: Region, *, huge_pages: str, numa: str, host: Host) -> tuple[Advice, ...]:
    """Applies `arena.huge_pages` and `arena.numa`, and excludes the arena from core dumps.

    Never raises an error, because the arena works without any of this.

    Returns:
        The result of each advice.
    """
    results = [_try("core dumps", "the arena is excluded from core dumps", lambda: exclude_from_dumps(region))]
    if flaw := host.shared_memory().flaw:
        results.append(Advice(what="file system", taken=False, note=flaw))
    elif huge_pages == "advise":
        results.append(_advise_huge_pages(region, host))
    if numa == "interleave":
        results.append(_advise_interleave(region, host.nodes()))
    return tuple(results)


def lazy_memory(huge_pages: str, host: Host) -> LazyMemory:
    """Returns how the memory of an arena that is not populated is to be allocated, with this `arena.huge_pages`."""
    small = huge_pages != "advise" or bool(host.huge_pages().obstacle)
    # Other file systems may not be able to allocate memory of a file.
    return LazyMemory.FILE if small and host.shared_memory().kind == "tmpfs" else LazyMemory.MAPPING


def _advise_huge_pages(region: Region, host: Host) -> Advice:
    obstacle = host.huge_pages().obstacle
    if obstacle:
        return Advice(what="huge pages", taken=False, note=f"no huge pages: {obstacle}")
    return _try("huge pages", "huge pages are requested for the arena", lambda: ask_huge_pages(region))


def _advise_interleave(region: Region, nodes: tuple[int, ...]) -> Advice:
    if len(nodes) < 2:
        return Advice(what="NUMA", taken=False, note="nothing to interleave: this host has one NUMA node")
    listed = ", ".join(map(str, nodes))
    return _try("NUMA", f"the arena is interleaved over NUMA nodes {listed}", lambda: interleave(region, nodes))


def _try(what: str, done: str, act: Callable[[], None]) -> Advice:
    try:
        act()
    except OSError as error:
        return Advice(what=what, taken=False, note=f"{what}: the kernel refused: {error.strerror}")
    return Advice(what=what, taken=True, note=done)


def _madvise(region: Region, advice: int) -> None:
    _check(_libc().madvise(ctypes.c_void_p(region.address), ctypes.c_size_t(region.length), ctypes.c_int(advice)))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
