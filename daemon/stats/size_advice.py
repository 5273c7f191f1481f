"""What the lookups of a running cache would find with other sizes, and why pages were not found.

Whole prompts count, also tokens that an engine had in its own cache, which LookupStats leaves out.

The fields are the keys of `pagetier advise --json`: new ones may be added, none is renamed.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from pagetier.daemon.common.lookup_window import LOOKUP_WINDOW_S
from pagetier.shm._core import Absence, IndexHeader, LookupCurve, NamespaceRecord, Observer, SampledLookups

MEMORY_FACTORS: Final = (0.5, 1.0, 2.0, 4.0)
DISK_FACTORS: Final = (2.0, 5.0, 10.0)
_PLOT_STEPS: Final = 4  # points for each doubling
_PLOT_RANGE: Final = (-5, 6)  # powers of two of the arena
_KNEE_END: Final = 0.99  # of what an endless cache finds
_MUCH: Final = 0.05  # by which two hit ratios differ before it is reported

_ABOUT: Final = {
    Absence.NEVER_STORED: "never stored",
    Absence.EVICTED_FROM_MEMORY: "evicted from memory, not on disk",
    Absence.EVICTED_FROM_DISK: "evicted from disk",
    Absence.DROPPED: "dropped: flushed, damaged or rejected",
    Absence.IN_OTHER_NAMESPACE: "stored under another namespace",
}


class AbsentTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens in pages that were not found, by the reason. They are estimated from sampled pages.

    Attributes:
        never_stored: As far as the history reaches. Also pages under another namespace, if the engine does not hand in
            hashes of its own.
        evicted_from_memory: They were not on disk; or they were not stored, as they were not worth their room.
        evicted_from_disk: They had been on disk.
        dropped: They were flushed or damaged, or their store was rejected or given up.
        in_other_namespace: The same hashes are stored under another model, dtype or salt.
    """

    never_stored: int = 0
    evicted_from_memory: int = 0
    evicted_from_disk: int = 0
    dropped: int = 0
    in_other_namespace: int = 0

    @classmethod
    def of(cls, tokens: Sequence[float]) -> AbsentTokens:
        """Returns the tokens of a list by Absence."""
        return cls(**{reason.name.lower(): round(tokens[reason]) for reason in Absence})

    @property
    def tokens(self) -> int:
        """The tokens of all reasons."""
        return sum(msgspec.structs.astuple(self))

    def shares(self) -> dict[str, float]:
        """Returns the share of each reason, by its description. Empty if nothing was missed."""
        total = self.tokens
        return {about: getattr(self, reason.name.lower()) / total for reason, about in _ABOUT.items()} if total else {}


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What an LRU cache of a size would find.

    Attributes:
        policy: "lru", whatever the daemon evicts by.
        lower_bound: The daemon evicts by "cadence", which finds about as much or more. False for a disk: not all pages
            may be written to it.
        size: As a multiple of the arena: "2x".
        bytes: The size.
        hit_ratio: The share of the looked-up tokens that it has.
        saved_tokens_per_second: Tokens that need not be computed.
    """

    policy: str = "lru"
    lower_bound: bool
    size: str
    bytes: int
    hit_ratio: float
    saved_tokens_per_second: float


class NamespaceAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The lookups of one namespace, or of all.

    Attributes:
        namespace: Its label; "" for all.
        tokens: Looked-up tokens; older ones count less.
        hit_ratio: The share of them that was found, in memory or on disk.
        endless_hit_ratio: What a cache without a limit would find.
        memory: Predictions for sizes of the arena, without a disk.
        disk: Predictions for disks; their sizes are multiples of the arena.
        absent: Why tokens were not found; older ones count less.
    """

    namespace: str
    tokens: int
    hit_ratio: float
    endless_hit_ratio: float
    memory: tuple[Prediction, ...]
    disk: tuple[Prediction, ...]
    absent: AbsentTokens


class SizeAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the lookups of a cache.

    Attributes:
        total: All lookups.
        namespaces: The namespaces with the most looked-up tokens.
        arena_bytes: The size of the arena.
        disk_bytes: The room on the disk; 0: there is no disk, or it is not ready.
        present_disk: The prediction for this disk, to compare with `total.hit_ratio`, which was measured; None without
            a disk. A disk smaller than the arena adds nothing to it.
        seconds: The time since the first lookup.
        tokens_per_second: Looked-up tokens.
        knee_bytes: The size beyond which more memory is worth less than on average to an LRU cache; 0: not known.
        curve: Pairs of a size in bytes and the hit ratio predicted for an LRU cache.
        sampled_share: The share of pages that are sampled.
        lookups: Lookups that were counted.
        lost_lookups: Lookups that were not counted, as their process's ring was full.
        hit_ratio_of_all: The share of all looked-up pages that was found; the predictions leave out the misses that no
            store followed.
        warning: What makes the predictions too high; "" if nothing is known that does.
    """

    total: NamespaceAdvice
    namespaces: tuple[NamespaceAdvice, ...]
    arena_bytes: int
    disk_bytes: int
    present_disk: Prediction | None
    seconds: float
    tokens_per_second: float
    knee_bytes: int
    curve: tuple[tuple[int, float], ...]
    sampled_share: float
    lookups: int
    lost_lookups: int
    hit_ratio_of_all: float
    warning: str


def read_advice(observer: Observer, spaces: Iterable[NamespaceRecord], policy: str) -> SizeAdvice | None:
    """Returns the advice, or None before the first lookup.

    Args:
        observer: Reads the cache.
        spaces: The namespaces that get their own advice, if they have a curve.
        policy: `evict.policy`.
    """
    header, known = observer.header(), observer.lookups()
    low, high = _PLOT_RANGE
    steps = [2 ** (at / _PLOT_STEPS) for at in range(low * _PLOT_STEPS, high * _PLOT_STEPS + 1)]
    factors = [*MEMORY_FACTORS, *DISK_FACTORS, *steps]
    present = max(header.frames, effective_frames(header))
    curves = observer.curves(array("d", [*(factor * header.frames for factor in factors), present]))
    if known is None or not curves or not curves[0].found + curves[0].missed:
        return None
    labels = {space.digest[:8]: space.name for space in spaces}
    rates = [_rate(curve, known.seconds) for curve in curves]
    advised = [
        _advice_of(header, curve, rate, policy, labels.get(curve.digest, ""))
        for curve, rate in zip(curves, rates, strict=True)
    ]
    points = [
        (round(factor * header.arena_bytes), ratio) for factor, ratio in zip(factors, curves[0].ratios, strict=False)
    ]
    curve = tuple(points[len(MEMORY_FACTORS) + len(DISK_FACTORS) :])
    return SizeAdvice(
        total=advised[0],
        namespaces=tuple(sorted((one for one in advised[1:] if one.namespace), key=lambda one: -one.tokens)),
        arena_bytes=header.arena_bytes,
        disk_bytes=header.disk_frames * header.frame_bytes,
        present_disk=_present_disk(header, curves[0].ratios[-1], rates[0]),
        seconds=known.seconds,
        tokens_per_second=rates[0],
        knee_bytes=knee(curve, curves[0].endless),
        curve=curve,
        sampled_share=known.share,
        lookups=known.records,
        lost_lookups=known.lost,
        hit_ratio_of_all=_ratio(known.hit_pages, known.miss_pages),
        warning=_warning(known, advised[0].hit_ratio),
    )


def effective_frames(header: IndexHeader) -> float:
    """Returns the frames of pages for which the disk has room: more than it has if pages are compressed, as so far."""
    stored = header.disk_used_frames * header.frame_bytes
    return header.disk_frames * max(1.0, header.disk_bytes / stored if stored else 1.0)


def _present_disk(header: IndexHeader, hit_ratio: float, rate: float) -> Prediction | None:
    """Returns the prediction for the disk that is configured, None without one."""
    if not header.disk_frames:
        return None
    return Prediction(
        lower_bound=False,
        size=f"{header.disk_frames / header.frames:.3g}x",
        bytes=header.disk_frames * header.frame_bytes,
        hit_ratio=hit_ratio,
        saved_tokens_per_second=hit_ratio * rate,
    )


def _warning(known: SampledLookups, hit_ratio: float) -> str:
    """Returns a warning if many missed pages were not stored afterwards, so that they are in no prediction; else ""."""
    of_all = _ratio(known.hit_pages, known.miss_pages)
    if _ratio(known.hit_pages, known.stored_pages) - of_all < _MUCH:
        return ""
    return (
        f"these numbers are too high: {hit_ratio:.1%} counts a miss only if its page is stored afterwards, and lookups"
        f" found {of_all:.1%} of all their pages. Some lookups are not followed by stores: they only look up, or their"
        " stores are rejected (see `pagetier stats`)"
    )


def _ratio(hits: float, misses: float) -> float:
    return hits / (hits + misses) if hits + misses > 0 else 0.0


def _rate(curve: LookupCurve, seconds: float) -> float:
    """Returns the looked-up tokens in a second, of sums in which a token that is LOOKUP_WINDOW_S old counts 1/e."""
    effective = -LOOKUP_WINDOW_S * math.expm1(-seconds / LOOKUP_WINDOW_S)
    return (curve.found + curve.missed) / effective if effective > 0 else 0.0


def _advice_of(header: IndexHeader, curve: LookupCurve, rate: float, policy: str, label: str) -> NamespaceAdvice:
    bounds = [policy != "lru"] * len(MEMORY_FACTORS) + [False] * len(DISK_FACTORS)
    predicted = tuple(
        Prediction(
            lower_bound=bound,
            size=f"{factor:g}x",
            bytes=round(factor * header.arena_bytes),
            hit_ratio=ratio,
            saved_tokens_per_second=ratio * rate,
        )
        for factor, ratio, bound in zip((*MEMORY_FACTORS, *DISK_FACTORS), curve.ratios, bounds, strict=False)
    )
    tokens = curve.found + curve.missed
    return NamespaceAdvice(
        namespace=label,
        tokens=round(tokens),
        hit_ratio=curve.found / tokens,
        endless_hit_ratio=curve.endless,
        memory=predicted[: len(MEMORY_FACTORS)],
        disk=predicted[len(MEMORY_FACTORS) :],
        absent=AbsentTokens.of(curve.absent),
    )


def knee(curve: Iterable[tuple[int, float]], endless: float) -> int:
    """Returns the size at which the curve is furthest above the line from nothing to nearly all; 0 if there is none."""
    rising = []
    for size, ratio in curve:
        rising.append((size, ratio))
        if ratio >= _KNEE_END * endless:
            break
    if not rising or not rising[-1][1]:
        return 0
    last, top = rising[-1]
    return max(rising, key=lambda point: point[1] / top - point[0] / last)[0]
