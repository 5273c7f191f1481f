"""pagetier: a KV cache for LLM inference engines, shared by the processes of a host through memory and disk.

    client = Client() with client.match(keys) as hit:
        client.load(hit, buffers)
    client.store(keys, buffers) client.close()

An engine imports `pagetier.client`; `pagetierd` is the daemon. Importing this package imports no other module.
"""

__version__ = "0.1.0"
