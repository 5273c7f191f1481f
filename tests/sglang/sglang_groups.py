"""The process groups of the tests' engines, as SGLang makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from sglang_model import Spec, place_of


class Groups:
    """The groups of one process. All processes of the engine make them in one order.

    Attributes:
        place: What this process is.
        tensor: The processes of its stage.
    """

    def __init__(self, spec: Spec, number: int, rendezvous: Path) -> None:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=number, world_size=spec.processes)
        self._spec, self.place = spec, place_of(spec, number)
        self._own: dict[str, Any] = {}
        places = [place_of(spec, other) for other in range(spec.processes)]
        axes = ("stage", "context", "rank")
        for name in axes:
            others = [axis for axis in axes if axis != name]
            self._make(name, [tuple(getattr(place, axis) for axis in others) for place in places])
        self._make("tensor", [one.stage for one in places])
        self.tensor = self._own["tensor"]

    def of_cache(self) -> dict[str, Any]:
        """Returns what SGLang's CacheInitParams say of the ranks."""
        spec, place = self._spec, self.place
        if spec.stages == spec.contexts == 1:
            return {"tp_cache_group": self.tensor}
        return {
            "tp_cache_group": self.tensor,
            "attn_tp_cache_group": self._own["rank"],
            "attn_cp_cache_group": self._own["context"],
            "pp_cache_group": self._own["stage"],
            "pp_rank": place.stage,
            "pp_size": spec.stages,
            "attn_cp_rank": place.context,
            "attn_cp_size": spec.contexts,
        }

    def _make(self, name: str, kinds: list[Any]) -> None:
        """Makes the groups of the processes that are of one kind, and keeps that of this one."""
        mine = kinds[dist.get_rank()]
        for kind in dict.fromkeys(kinds):
            group = dist.new_group([number for number, other in enumerate(kinds) if other == kind], backend="gloo")
            if kind == mine:
                self._own[name] = group
