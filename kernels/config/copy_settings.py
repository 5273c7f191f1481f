"""The settings of the copies: which path a run takes by its length, and how much of the machine copies may use."""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import msgspec

PathName = Literal["auto", "kernel", "staged", "dma"]
PATH_NAMES: Final[tuple[str, ...]] = get_args(PathName)

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_MOST_BYTES: Final = 2**63 - 1
_MOST_SECONDS: Final = 86400.0


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run lengths, in contiguous bytes, at which the next copy path becomes faster.

    A run shorter than `kernel_below` is copied by a kernel, one shorter than `staged_below` through the ring on the
    GPU, and a longer one by DMA alone. The defaults follow published figures: a kernel wins below 28 to 34 KB a run,
    DMA above.

    Raises:
        ValueError: A number is negative, or kernel_below exceeds staged_below.
    """

    kernel_below: int = 32 * _KIB
    staged_below: int = 32 * _KIB

    def __post_init__(self) -> None:
        _between(self, "kernel_below", 0, _MOST_BYTES)
        _between(self, "staged_below", 0, _MOST_BYTES)
        if self.kernel_below > self.staged_below:
            raise ValueError(
                f"kernel_below = {self.kernel_below} exceeds staged_below = {self.staged_below}:"
                " the shortest runs use the kernel, longer ones the ring, the longest DMA"
            )


class CopySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of asynchronous copies. Raises ValueError for a value that is out of range.

    Attributes:
        path: "auto" chooses the copy path by run length, from `stores` and `loads`; a name selects one path for
            everything.
        programs: The number of Triton programs at once, which limits the SMs that a copy takes from the model; a store
            over the bus has a quarter of them.
        store_bandwidth, load_bandwidth: The limit in bytes a second; 0 for none.
        queue_limit: Seconds of work that may be queued, at the measured rate; further pages are rejected.
        chunk: Bytes of pages that are enqueued and published together.
        depth: The number of chunks that are enqueued at once.
        reserve_timeout: Seconds to wait for the daemon's answer to a reservation.
        staging: Bytes of the rings on the GPU, half for each direction.
        stores, loads: The thresholds of each direction.
    """

    path: PathName = "auto"
    programs: int = 16
    store_bandwidth: int = 0
    load_bandwidth: int = 0
    queue_limit: float = 2.0
    chunk: int = 64 * _MIB
    depth: int = 4
    reserve_timeout: float = 1.0
    staging: int = 32 * _MIB
    stores: Thresholds = msgspec.field(default_factory=Thresholds)
    loads: Thresholds = msgspec.field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        if self.path not in PATH_NAMES:
            raise ValueError(f"path = {self.path!r} is not one of {', '.join(PATH_NAMES)}")
        _between(self, "programs", 1, 65535)
        _between(self, "depth", 1, 64)
        _between(self, "chunk", 1, _MOST_BYTES)
        _between(self, "staging", 64 * _KIB, _MOST_BYTES)
        _between(self, "store_bandwidth", 0, _MOST_BYTES)
        _between(self, "load_bandwidth", 0, _MOST_BYTES)
        _some_time(self, "queue_limit")
        _some_time(self, "reserve_timeout")


def _between(struct: msgspec.Struct, name: str, least: int, most: int) -> None:
    value = getattr(struct, name)
    if not least <= value <= most:
        raise ValueError(f"{name} = {value} is not between {least} and {most}")


def _some_time(struct: msgspec.Struct, name: str) -> None:
    value = getattr(struct, name)
    if math.isnan(value) or not 0 < value <= _MOST_SECONDS:
        raise ValueError(f"{name} = {value} is not a number of seconds above 0 and at most {_MOST_SECONDS:.0f}")
