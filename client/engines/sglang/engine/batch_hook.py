"""Lets SGLang's scheduler report its batches to pagetier."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Final

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from pagetier.client.engines.sglang.engine.batch_times import ReportsBatches

_SCHEDULER: Final = "sglang.srt.managers.scheduler"


@cache
def measure_batches() -> None:
    """Lets SGLang's scheduler report its batches from now on. If a plugin hooked the method before, it does not."""
    if _SCHEDULER in sys.modules:
        HookRegistry.register(f"{_SCHEDULER}.Scheduler.process_batch_result", _on_result, HookType.AFTER)
        HookRegistry.apply_hooks()


def _on_result(_: None, scheduler: Any, batch: Any, *__: Any, **___: Any) -> None:
    tree = getattr(scheduler, "tree_cache", None)
    storage = getattr(getattr(tree, "cache_controller", None), "storage_backend", None)
    linker = getattr(getattr(tree, "linker", None), "cache_linker", None)
    for part in (storage, linker):
        if isinstance(part, ReportsBatches):
            part.batch_ended(batch)
