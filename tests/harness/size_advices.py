"""Makes advice on sizes without a daemon."""

from __future__ import annotations

from pagetier.daemon.stats.size_advice import AbsentTokens, NamespaceAdvice, Prediction, SizeAdvice

ARENA = 1 << 30
SIZES = [round(ARENA * 2 ** (step / 4)) for step in range(-20, 25)]


def advice_with_knee(knee_bytes: int, endless: float = 1.0) -> SizeAdvice:
    """Returns advice of which the curve rises to `endless`, with the knee at a size."""
    curve = tuple((size, endless * at / (len(SIZES) - 1)) for at, size in enumerate(SIZES))
    now = Prediction(lower_bound=True, size="1x", bytes=ARENA, hit_ratio=0.5, saved_tokens_per_second=1.0)
    total = NamespaceAdvice(
        namespace="",
        tokens=1000,
        hit_ratio=0.5,
        endless_hit_ratio=endless,
        memory=(now,),
        disk=(),
        absent=AbsentTokens(),
    )
    return SizeAdvice(
        total=total,
        namespaces=(),
        arena_bytes=ARENA,
        disk_bytes=0,
        present_disk=None,
        seconds=1.0,
        tokens_per_second=1000.0,
        knee_bytes=knee_bytes,
        curve=curve,
        sampled_share=1.0,
        lookups=10,
        lost_lookups=0,
        hit_ratio_of_all=0.5,
        warning="",
    )
