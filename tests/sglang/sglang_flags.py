"""Flags that select pagetier, and what resolves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

Resolve = Callable[..., dict[str, Any]]
FolderOf = Callable[[str], str]

LINKER_FLAGS: Final = ("--enable-unified-cache-external-linker", "--unified-cache-external-linker-backend", "dynamic")
LINKER_CONFIG: Final = "--unified-cache-external-linker-config"


def linker(**settings: Any) -> dict[str, Any]:
    """Returns the configuration of the linker with these settings."""
    module = "pagetier.client.engines.sglang"
    return {"linker": "PagetierLinker", "linker_module_path": module, "linker_extra_config": settings}


STORAGE: Final = json.dumps(
    {
        "backend_name": "pagetier",
        "class_name": "PagetierStorage",
        "module_path": "pagetier.client.engines.sglang",
        "interface_v1": 1,
    }
)


def storage(**settings: Any) -> str:
    """Returns the configuration of the storage with these settings besides."""
    return json.dumps(json.loads(STORAGE) | settings)


BY_FLAGS: Final[dict[str, tuple[str, ...]]] = {
    "linker": (*LINKER_FLAGS, LINKER_CONFIG, json.dumps(linker())),
    "HiCache": (
        *("--enable-hierarchical-cache", "--hicache-storage-backend", "dynamic"),
        *("--hicache-storage-backend-extra-config", STORAGE),
    ),
}
"""The flags of both ways to connect SGLang."""
