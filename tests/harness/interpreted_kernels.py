"""The kernel pair, interpreted on the CPU: a second copy of its module, so that the first can still be compiled."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import triton

from pagetier.kernels.gpu import triton_kernels


@cache
def interpreted_kernels() -> Any:
    """Returns a second triton_kernels module.

    Triton reads its switch in the decorator, so it is on during the import.
    """
    spec = importlib.util.spec_from_file_location("interpreted_copy_kernels", triton_kernels.__file__)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        spec.loader.exec_module(module)
    return module
