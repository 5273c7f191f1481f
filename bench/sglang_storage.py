"""Measures backups and prefetches of SGLang's HiCache by pagetier and by two backends of SGLang.

They are `file` on tmpfs and, where `make test-fleet` has installed Mooncake, its store on the loopback address. It runs
where SGLang is installed, as `make test-engines` does in .engines, and says so elsewhere.
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from daemon_setup import Stage, settle
from measure import Result, at_least, main, median_times
from sglang_caches import pool_of

ROUNDS = 15
PAGES, TOKENS, LAYERS, HEADS, DIM = 16, 64, 16, 8, 128
NBYTES = PAGES * TOKENS * LAYERS * HEADS * DIM * 2 * 2
Copy = Callable[[list[str]], None]
ROOT = Path(__file__).resolve().parent.parent
FLEET = ROOT / ".engines" / "fleet"
# Its node has room for all objects of a run: a store that evicts would not find them again.
MOONCAKE = """
import sys
from pathlib import Path
import store_servers
store_servers._SEGMENT = "3 GB"
with store_servers.mooncake_servers(Path(sys.argv[1])) as servers:
    print(servers.address, flush=True)
    sys.stdin.read()
"""


def host_pool(folder: Path, layout: str) -> Any:
    """Returns a host pool of SGLang's HiCache."""
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_kv_host_pool
    from sglang.srt.runtime_context import get_context, get_parallel

    import sglang_host_copies
    from sglang_model import Spec, write_config

    sglang_host_copies.install()
    settings: dict[str, Any] = {"hicache_mem_layout": layout, "hicache_ratio": 2.0, "hicache_size": 0}
    model = write_config(folder / "model", Spec(heads=HEADS))
    get_context().override_server_args(device="cpu", model_path=str(model), page_size=TOKENS, **settings).install()
    get_parallel().override_permanently(
        tp_rank=0, pp_rank=0, attn_tp_rank=0, attn_dp_rank=0, attn_cp_rank=0, attn_dcp_rank=0
    )
    pool = build_kv_host_pool(kv_pool=pool_of(PAGES * TOKENS, TOKENS, LAYERS, HEADS, DIM), page_size=TOKENS)
    pool.pin_memory = False  # for the buffers that the file backend allocates
    return pool


def backend_config(layout: str, **extra: Any) -> Any:
    """Returns SGLang's configuration of a backend."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=layout == "page_first",
        model_name="bench",
        extra_config=extra,
    )


def pagetier(socket: Path, pool: Any, indices: Any) -> tuple[Copy, Copy]:
    """Returns the backup and the prefetch of pages by pagetier."""
    from pagetier.client.engines.sglang import PagetierStorage

    storage = PagetierStorage(
        backend_config(pool.layout, socket=str(socket), weights="bench", interface_v1=1, timeout=60.0)
    )
    storage.register_mem_pool_host(pool)
    storage.on_host_pools_registered()

    def backup(keys: list[str]) -> None:
        assert all(storage.batch_set_v1(keys, indices))

    def prefetch(keys: list[str]) -> None:
        assert all(storage.batch_get_v1(keys, indices))

    return backup, prefetch


def files(folder: Path, pool: Any, indices: Any) -> tuple[Copy, Copy]:
    """Returns the backup and the prefetch of pages by SGLang's `file` backend, as its controller calls it."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile

    storage = HiCacheFile(backend_config(pool.layout), str(folder))
    places = indices[::TOKENS].tolist()

    def backup(keys: list[str]) -> None:
        assert storage.batch_set(keys, [pool.get_data_page(place) for place in places])

    def prefetch(keys: list[str]) -> None:
        pages = storage.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
        for place, page in zip(places, pages, strict=True):
            assert page is not None
            pool.set_from_flat_data_page(place, page)

    return backup, prefetch


@contextmanager
def mooncake_master() -> Iterator[str]:
    """Runs a master and a node of Mooncake. Yields the address of the master; "" without Mooncake."""
    site.addsitedir(str(FLEET / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"))
    try:
        import mooncake.store  # noqa: F401  with LD_LIBRARY_PATH as in the Makefile
    except ImportError:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder:
        command = [str(FLEET / "bin" / "python"), "-c", MOONCAKE, folder]
        path = os.environ | {"PYTHONPATH": str(ROOT / "tests" / "harness")}
        with subprocess.Popen(command, env=path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as servers:
            assert servers.stdin is not None and servers.stdout is not None
            yield servers.stdout.readline().strip()
            servers.stdin.close()


def mooncake(address: str, pool: Any, indices: Any) -> tuple[Copy, Copy]:
    """Returns the backup and the prefetch of pages by SGLang's backend for Mooncake, which contributes no memory."""
    from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStore

    config = backend_config(
        pool.layout,
        master_server_address=address,
        metadata_server="P2PHANDSHAKE",
        protocol="tcp",
        local_hostname="127.0.0.1",
        global_segment_size=0,
        check_server=False,
    )
    storage = MooncakeStore(config, pool)
    storage.register_mem_pool_host(pool)

    def backup(keys: list[str]) -> None:
        assert all(storage.batch_set_v1(keys, indices))

    def prefetch(keys: list[str]) -> None:
        assert all(storage.batch_get_v1(keys, indices))

    return backup, prefetch


def measure() -> Iterator[Result]:
    """Yields all results."""
    if not find_spec("sglang"):
        raise SystemExit("SGLang is not installed beside this Python: run it with .engines/sglang-0.5.23/bin/python")
    # After copies of torch by the other backends, its threads would poll, and take a core from the copies that follow.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    sys.path.insert(0, str(ROOT / "tests" / "sglang"))
    import sglang_imports  # noqa: F401  before SGLang

    with mooncake_master() as master:
        for layout in ("page_first", "layer_first"):
            yield from measure_layout(layout, master)


def measure_layout(layout: str, master: str) -> Iterator[Result]:
    """Measures all backends that know a layout."""
    import torch

    with (
        Stage("--arena-size", "2GiB", "--set", "arena.frame_size=64KiB") as stage,
        tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="pagetier-bench-", dir="/dev/shm") as tmpfs,
    ):
        os.environ.pop("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", None)
        stage.client().close()
        pool, indices = host_pool(Path(folder), layout), torch.arange(TOKENS, (PAGES + 1) * TOKENS)
        others = {"file backend on tmpfs": files(Path(tmpfs), pool, indices)}
        if master and layout == "page_first":  # Mooncake's backend knows layer_first for MLA only
            others["Mooncake on loopback"] = mooncake(master, pool, indices)
        yield from compare(layout, pagetier(stage.socket, pool, indices), others)


def compare(layout: str, ours: tuple[Copy, Copy], others: dict[str, tuple[Copy, Copy]]) -> Iterator[Result]:
    """Measures all backends and memcpy in turn."""
    numbers = count()

    def new_keys() -> list[str]:
        return [sha256(b"%d" % next(numbers)).hexdigest() for _ in range(PAGES)]

    stored = new_keys()
    backends = [ours, *others.values()]
    for backup, _ in backends:
        backup(stored)
    settle()
    source, target = (np.ones(NBYTES, np.uint8) for _ in range(2))
    actions = [action for both in backends for action in copies_of(*both, new_keys, stored)]
    memcpy, *taken = median_times(ROUNDS, lambda: np.copyto(target, source), *actions)
    rates = [memcpy / one for one in taken]
    against = f"{layout}, {NBYTES / 2**20:.0f} MiB, memcpy {NBYTES / memcpy / 2**30:.2f} GiB/s"
    for way, name in enumerate(("backup", "prefetch")):
        theirs = "".join(f"; {other} {rates[2 * at + way]:.2f} x" for at, other in enumerate(others, 1))
        yield Result(f"sglang_{name}_{layout}_over_memcpy", rates[way], "x", against + theirs, at_least(0.8))


def copies_of(
    backup: Copy, prefetch: Copy, new_keys: Callable[[], list[str]], stored: list[str]
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns the two actions of a backend that are measured."""
    return lambda: backup(new_keys()), lambda: prefetch(stored)


if __name__ == "__main__":
    main("SGLang's HiCache", measure)
