"""Imports what engines need, once, in the process from which theirs are forked. Nothing here starts a thread."""

from contextlib import suppress
from importlib import import_module

for name in (
    "pagetier.client",
    "race.engine_process",
    "vllm.v1.kv_offload.cpu.manager",
    "vllm.v1.kv_offload.tiering.fs.io",
    "lmcache.integration.vllm.vllm_multi_process_adapter",
    "lmcache.v1.multiprocess.transport.zmq_impl",
    "lmcache.v1.multiprocess.transfer_context.base",
):
    with suppress(ImportError):
        import_module(name)
