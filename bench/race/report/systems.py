"""The systems in the order in which every table and every picture shows them."""

from __future__ import annotations

from collections.abc import Iterable

from race.contestants.registry import FILES, LMCACHE, NATIVE, PAGETIER

VLLM = "vLLM"
SYSTEMS = (PAGETIER, LMCACHE, NATIVE, FILES, VLLM)


def in_order(names: Iterable[str]) -> list[str]:
    """Returns each name once: those of the race first, the others behind them."""
    found = dict.fromkeys(names)
    return [*(name for name in SYSTEMS if name in found), *(name for name in found if name not in SYSTEMS)]
