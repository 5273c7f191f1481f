"""pagetier: a KV cache for LLM inference engines, shared by the processes of a host through memory and disk.

    with Client() as client:
        cache = client.register(kv_caches, layout="vllm", model="meta-llama/Llama-3.1-8B", page_tokens=256)
        cache.store(token_ids, block_table)
        with cache.match(token_ids) as hit:
            cached_tokens = cache.load(hit, other_block_table)

`from pagetier import Client` is short for `from pagetier.client import Client`; `pagetierd` is the daemon. Importing
this package imports no other module until Client is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"
__all__ = ["Client", "__version__"]

if TYPE_CHECKING:  # without __getattr__, which would make every name of the package exist
    from pagetier.client import Client as Client
else:

    def __getattr__(name: str) -> Any:
        """Imports Client when it is first used, so that the daemon never imports the client."""
        if name != "Client":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pagetier.client import Client

        return Client
