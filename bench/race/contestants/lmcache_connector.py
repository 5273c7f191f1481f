"""LMCache's connector for vLLM, which starts on a CPU if this module is its path.

vLLM 0.32 looks through all imported modules for Triton kernels when it starts on a CPU, and fails at the functions of
llvmlite, which LMCache imports through numba. They are out of its sight while it looks. Nothing else differs.
"""

from __future__ import annotations

import sys
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_mp_connector import LMCacheMPConnector
from vllm.triton_utils import dispatcher

__all__ = ["LMCacheMPConnector"]

_rebind = dispatcher._rebind_kernels


def _rebind_without_llvmlite(overrides: Any) -> None:
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("llvmlite")}
    try:
        _rebind(overrides)
    finally:
        sys.modules.update(hidden)


dispatcher._rebind_kernels = _rebind_without_llvmlite
