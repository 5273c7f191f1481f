"""Two interfaces of SGLang: an external linker of its radix cache, and a storage backend of its HiCache.

    PAGETIER=1

    --enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic
    --unified-cache-external-linker-config '{"linker": "PagetierLinker",
        "linker_module_path": "pagetier.client.engines.sglang", "linker_extra_config": {}}'

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "pagetier", "class_name": "PagetierStorage",
        "module_path": "pagetier.client.engines.sglang", "interface_v1": 1}'

linker/ implements the one and storage/ the other. Both know the engine by engine/ and its memory by pools/. plugin.py
is the entry point, which selects the linker where the variable says so. Only plugin.py, linker/cache_hooks.py,
linker/linker.py, engine/model.py, engine/version.py and storage/backend.py import SGLang. The other modules recognise
its objects by their attributes, so that they can be imported without SGLang.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pagetier.client.engines.sglang.linker.linker import PagetierLinker
    from pagetier.client.engines.sglang.storage.backend import PagetierStorage

__all__ = ["PagetierLinker", "PagetierStorage"]

_MODULES: Final = {"PagetierLinker": "linker.linker", "PagetierStorage": "storage.backend"}


def __getattr__(name: str) -> Any:
    """Returns the linker or the storage backend, and imports SGLang only when it is requested.

    Raises:
        AttributeError: The module has no such attribute.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
