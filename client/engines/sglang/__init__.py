"""Two doors into SGLang: an external linker of its radix cache, and a storage backend of its HiCache.

    --enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic
    --unified-cache-external-linker-config '{"linker": "PagetierLinker",
        "linker_module_path": "pagetier.client.engines.sglang", "linker_extra_config": {}}'

Only linker.py and model.py import SGLang. The other modules recognise its objects by their attributes, so that they can
be imported without SGLang.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagetier.client.engines.sglang.linker import PagetierLinker

__all__ = ["PagetierLinker"]


def __getattr__(name: str) -> Any:
    """Returns the linker, and imports SGLang only when it is requested.

    Raises:
        AttributeError: The module has no such attribute.
    """
    if name != "PagetierLinker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pagetier.client.engines.sglang.linker import PagetierLinker

    return PagetierLinker
