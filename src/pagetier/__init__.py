"""pagetier: a KV cache for LLM inference engines, shared by the processes of a host through memory and disk.

    with Client() as client:
        cache = client.register(kv_caches, layout="vllm", model="meta-llama/Llama-3.1-8B", page_tokens=256)
        cache.store(token_ids, block_table)
        with cache.match(token_ids) as hit:
            cached_tokens = cache.load(hit, other_block_table)

An engine imports Client from `pagetier.client`; `pagetierd` is the daemon. Importing this package imports no other
module.
"""

__version__ = "0.1.0"
