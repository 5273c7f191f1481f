"""Exports pagetier's counters as vLLM's metrics: in its log and at its /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from pagetier.client.engines.vllm.counters import HELP
from pagetier.client.engines.vllm.request_state import LoadedTokens


def hit_sources(taken: LoadedTokens) -> dict[Any, int]:
    """Returns the tokens that a request loads by vLLM's names of tiers, which has none for a remote store."""
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    by_tier = {
        CacheHitSource.HOST: taken.from_memory,
        CacheHitSource.DISK: taken.from_disk,
        CacheHitSource.EXTERNAL_UNSPECIFIED: taken.from_fleet,
    }
    return {source: tokens for source, tokens in by_tier.items() if tokens}


@dataclass
class PagetierStats(KVConnectorStats):
    """Counts by name; counters.HELP lists them."""

    def reset(self) -> None:
        """Sets all counts to 0."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Returns the sums of both."""
        names = self.data.keys() | other.data.keys()
        return PagetierStats({name: self.data.get(name, 0) + other.data.get(name, 0) for name in names})

    def reduce(self) -> dict[str, int | float]:
        """Returns the counts under their names in the log."""
        return {f"pagetier {name.replace('_', ' ')}": count for name, count in sorted(self.data.items())}

    def is_empty(self) -> bool:
        """Returns whether nothing was counted."""
        return not any(self.data.values())


class PagetierMetrics(KVConnectorPromMetrics):
    """One counter for each name, `vllm:pagetier_NAME`."""

    def __init__(self, config: Any, types: Any, labels: list[str], values: dict[int, list[object]]) -> None:
        super().__init__(config, types, labels, values)
        self._counters: dict[str, dict[int, Any]] = {}
        for name, text in HELP.items():
            counter = self._counter_cls(name=f"vllm:pagetier_{name}", documentation=text, labelnames=labels)
            self._counters[name] = {engine: counter.labels(*given) for engine, given in values.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the counts of one engine."""
        for name, count in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(count)
