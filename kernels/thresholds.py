"""What copies are told: which way bytes go by the length of a run, and how much of the machine they may take."""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import msgspec

WayName = Literal["auto", "kernel", "staged", "dma"]
WAYS: Final[tuple[str, ...]] = get_args(WayName)

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_MOST_BYTES: Final = 2**63 - 1
_MOST_SECONDS: Final = 86400.0


class Thresholds(msgspec.Struct, frozen=True):
    """Where one way over the bus begins to be better than another, in bytes of a contiguous run.

    A run shorter than `kernel_below` goes by kernel; of the others one shorter than `staged_below` goes through the
    ring on the GPU, and the rest by DMA alone. The defaults are from published figures: a kernel wins below 28 to 34 KB
    a run, and DMA above. Raises ValueError for a negative number, or if kernel_below is more than staged_below.
    """

    kernel_below: int = 32 * _KIB
    staged_below: int = 32 * _KIB

    def __post_init__(self) -> None:
        _between(self, "kernel_below", 0, _MOST_BYTES)
        _between(self, "staged_below", 0, _MOST_BYTES)
        if self.kernel_below > self.staged_below:
            raise ValueError(
                f"kernel_below = {self.kernel_below} is more than staged_below = {self.staged_below}:"
                " shorter runs go by kernel, longer ones through the ring, the longest by DMA"
            )


class CopySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that asynchronous copies are told. Raises ValueError for what is out of bounds.

    way: "auto" chooses by run length, from `stores` and `loads`; a name has everything go that way.
    programs: Triton programs at once, which bounds the processors that a copy takes from the model.
    store_bandwidth, load_bandwidth: bytes a second at most; 0: no cap.
    backlog: seconds of work that may be queued at the measured rate; pages that do not fit are left out.
    chunk: bytes of pages that are enqueued and published together. depth: chunks that are enqueued at once.
    patience: seconds to wait for the daemon's grant. staging: bytes of the rings on the GPU, half for each direction.
    """

    way: WayName = "auto"
    programs: int = 16
    store_bandwidth: int = 0
    load_bandwidth: int = 0
    backlog: float = 2.0
    chunk: int = 64 * _MIB
    depth: int = 2
    patience: float = 1.0
    staging: int = 32 * _MIB
    stores: Thresholds = msgspec.field(default_factory=Thresholds)
    loads: Thresholds = msgspec.field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"way = {self.way!r} is not one of {', '.join(WAYS)}")
        _between(self, "programs", 1, 65535)
        _between(self, "depth", 1, 64)
        _between(self, "chunk", 1, _MOST_BYTES)
        _between(self, "staging", 64 * _KIB, _MOST_BYTES)
        _between(self, "store_bandwidth", 0, _MOST_BYTES)
        _between(self, "load_bandwidth", 0, _MOST_BYTES)
        _some_time(self, "backlog")
        _some_time(self, "patience")


def _between(struct: msgspec.Struct, name: str, least: int, most: int) -> None:
    value = getattr(struct, name)
    if not least <= value <= most:
        raise ValueError(f"{name} = {value} is not between {least} and {most}")


def _some_time(struct: msgspec.Struct, name: str) -> None:
    value = getattr(struct, name)
    if math.isnan(value) or not 0 < value <= _MOST_SECONDS:
        raise ValueError(f"{name} = {value} is not a number of seconds: more than 0, at most {_MOST_SECONDS:.0f}")
