"""LMCache's server as a contestant, over its path for engines without a CUDA device ("engine-driven").

Each engine does what LMCacheMPConnector's two adapters do on a CPU: lookup, wait for the prefetch, prepare and commit
a retrieve, prepare and commit a store, all through LMCache's own client, with its own defaults. Copies go straight
between the engine's pages and the server's shared memory, without gathering blocks: the best case for LMCache.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np

from disk_setup import until
from race.contestants.cache import OpenEngine, Pages, Sizes, Tokens, files_under, shared_prefix, sync_files

MODEL = "race"
_START_S = 120.0
_BYTES_OF_BFLOAT16, _KEYS_AND_VALUES = 2, 2


class LmcacheEngine:
    """A client of the server.

    Args:
        url: The server's address.
        sizes: The sizes.
        heartbeat: Seconds between two heartbeats; LMCache's default is 10.
    """

    def __init__(self, url: str, sizes: Sizes, heartbeat: float) -> None:
        from lmcache.integration.vllm import vllm_multi_process_adapter as adapter
        from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

        self._sizes, self._numbers = sizes, itertools.count()
        self._timeout = adapter.DEFAULT_MQ_TIMEOUT
        self._client = RequestClientFactory.create(url)
        self._healthy = threading.Event()
        self._healthy.set()
        self._register()
        self._heartbeat = adapter.HeartbeatThread(self._client, self._healthy, heartbeat, os.getpid())
        self._heartbeat.register_recover_callback(self._register)
        self._heartbeat.start()

    def prepare(self, tokens: Tokens) -> list[int]:
        listed: list[int] = tokens.tolist()
        return listed

    def lookup(self, prompt: list[int]) -> int:
        key = self._key(prompt)
        found = self._locked(key)
        if found:
            self._client.free_lookup_locks(self._key(prompt, key.request_id, found), 1).result(timeout=self._timeout)
        self._client.end_session(key.request_id)
        return found

    def store(self, prompt: list[int], pages: Pages) -> int:
        if not self._healthy.is_set():
            return 0
        key = self._key(prompt, worker=0)
        prepared = self._context.prepare_store(key, os.getpid())
        if prepared is None:
            return 0
        slots, indices = prepared
        for at, slot in zip(indices, slots, strict=True):
            _bytes_of(slot)[:] = pages[at]
        committed = self._context.commit_store(key, os.getpid(), slots) if slots else True
        self._client.end_session(key.request_id)
        return len(pages) if committed else 0

    def load(self, prompt: list[int], out: Pages) -> int:
        if not self._healthy.is_set():
            return 0
        key = self._key(prompt)
        found = self._locked(key)
        loaded = 0
        if found:
            part = self._key(prompt, key.request_id, found, worker=0)
            slots = self._context.prepare_retrieve(part, os.getpid()) or []
            for at, slot in enumerate(slots):
                out[at] = _bytes_of(slot)
            if slots and self._context.commit_retrieve(part, os.getpid()):
                loaded = len(slots)
        self._client.end_session(key.request_id)
        return loaded

    def begin_store(self, prompt: list[int], pages: Pages) -> int:
        prepared = self._context.prepare_store(self._key(prompt, worker=0), os.getpid())
        if prepared is None:
            return 0
        for at, slot in zip(prepared[1], prepared[0], strict=True):
            _bytes_of(slot)[: self._sizes.page // 2] = pages[at][: self._sizes.page // 2]
        return len(prepared[0])

    def begin_load(self, prompt: list[int]) -> int:
        return self._locked(self._key(prompt))

    def close(self) -> None:
        self._heartbeat.stop()
        self._client.close()

    def _register(self) -> bool:
        """Registers this engine, also with a server that was restarted, as the adapter's callback does."""
        import torch
        from lmcache.v1.distributed.api import MemoryLayoutDesc
        from lmcache.v1.multiprocess.custom_types import RegisterEngineDrivenContextPayload
        from lmcache.v1.multiprocess.transfer_context.base import (
            EngineDrivenContextMetadata,
            create_engine_driven_context,
        )

        tokens = self._sizes.page_tokens
        hidden = self._sizes.page // (_KEYS_AND_VALUES * _BYTES_OF_BFLOAT16 * tokens)
        payload = RegisterEngineDrivenContextPayload(
            os.getpid(), MODEL, 1, min(16, tokens), 1, hidden, "bfloat16", use_mla=False, num_physical_slots=tokens
        )
        try:
            answer = self._client.register_kv_cache_engine_driven_context(payload).result(timeout=self._timeout)
            layout = MemoryLayoutDesc(shapes=[torch.Size([2, 1, tokens, hidden])], dtypes=[torch.bfloat16])
            metadata = EngineDrivenContextMetadata(layout_desc=layout, block_size=min(16, tokens), use_mla=False)
            self._context = create_engine_driven_context(
                metadata, self._client, self._timeout, shm_name=answer.shm_name, pool_size=answer.pool_size
            )
        except Exception as error:  # noqa: BLE001 -- the adapter retries with the next heartbeat, whatever it was
            print(f"cannot register: {error}", file=sys.stderr)
            return False
        return True

    def _locked(self, key: Any) -> int:
        """Returns how many leading chunks are cached. The server locks them until they are retrieved or freed."""
        if not self._healthy.is_set():
            return 0
        asked = self._client.lookup(key, 1)
        if not self._answered(asked):
            return 0
        status = self._client.wait_prefetch_status(key.request_id, 30.0)
        return (status.result(timeout=0) or 0) if self._answered(status) else 0

    def _answered(self, future: Any) -> bool:
        """Waits as the scheduler's adapter does: until the answer, or until the heartbeat finds the server dead."""
        ends = time.monotonic() + self._timeout
        while time.monotonic() < ends and self._healthy.is_set():
            if future.wait(timeout=0.5):
                return True
        return False

    def _key(self, prompt: list[int], request: str = "", pages: int | None = None, worker: int | None = None) -> Any:
        from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey

        end = (len(prompt) if pages is None else pages * self._sizes.page_tokens) or len(prompt)
        name = request or f"{os.getpid()}-{next(self._numbers)}"
        return IPCCacheServerKey(MODEL, 1, worker, tuple(prompt), 0, end, name, num_kv_readers=1)


def _bytes_of(slot: Any) -> Pages:
    """Returns the bytes of a tensor in the server's shared memory."""
    import torch

    view: Pages = slot.view(torch.uint8).reshape(-1).numpy()
    return view


class LmcacheServer:
    """A server with the given sizes.

    Args:
        sizes: The sizes.
        disk_parent: Where the folder of the disk tier ("L2") is made.
        heartbeat: Seconds between an engine's heartbeats.
        options: Further arguments of the server.
    """

    name = "LMCache"

    def __init__(self, sizes: Sizes, disk_parent: Path, heartbeat: float = 10.0, options: Sequence[str] = ()) -> None:
        self._sizes, self._parent, self._heartbeat, self._options = sizes, disk_parent, heartbeat, options
        self.version = version("lmcache")

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="race-lmcache-", dir=self._parent))
        (self._folder / "l2").mkdir()
        self._shm = f"{shared_prefix('lmcache')}{secrets.token_hex(4)}"
        self._ports = free_ports(3)
        self.restart()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for path in self.leftovers():
            path.unlink()
        shutil.rmtree(self._folder, ignore_errors=True)

    def opener(self) -> OpenEngine:
        return functools.partial(LmcacheEngine, self._url(), self._sizes, self._heartbeat)

    def pids(self) -> Sequence[int]:
        return (self._process.pid,)

    def restart(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log, env=os.environ | _ENVIRONMENT)
        self._wait()

    @property
    def port(self) -> int:
        """The port of the request server."""
        return self._ports[0]

    def command(self) -> list[str]:
        """Returns the server's command line; configurations.md says why it is this one."""
        rpc, http, metrics = map(str, self._ports)
        arguments = ["--host", "127.0.0.1", "--port", rpc, "--http-port", http, "--prometheus-port", metrics]
        arguments += ["--l1-size-gb", str(self._sizes.memory / 2**30), "--no-l1-use-lazy", "--shm-name", self._shm]
        arguments += ["--supported-transfer-mode", "engine_driven", "--chunk-size", str(self._sizes.page_tokens)]
        arguments += ["--max-workers", "4", "--eviction-policy", "LRU"]
        if self._sizes.disk:
            adapter = {"type": "fs_native", "base_path": str(self._folder / "l2"), "use_odirect": True}
            arguments += ["--l2-adapter", json.dumps(adapter | {"max_capacity_gb": self._sizes.disk / 2**30})]
        return [str(Path(sys.executable).with_name("lmcache")), "server", *arguments, *self._options]

    def sync(self, pages: int) -> None:
        until("writing pages to disk", lambda: self._bytes_on_disk() >= pages * self._sizes.page, 120)
        sync_files(self.disk_files())

    def drop_memory(self) -> bool:
        """Clears the server's memory, once all stores have arrived on disk."""
        if not self._sizes.disk:
            return False
        _wait_unchanged(self._bytes_on_disk)
        from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

        client = RequestClientFactory.create(self._url())
        client.clear(force=True).result(timeout=60)
        client.close()
        return True

    def _bytes_on_disk(self) -> int:
        return sum(path.stat().st_size for path in self.disk_files() if path.suffix != ".tmp" and path.exists())

    def disk_files(self) -> list[Path]:
        return files_under(self._folder / "l2")

    def leftovers(self) -> list[Path]:
        return [path for path in Path("/dev/shm").iterdir() if self._shm in path.name]

    def log(self) -> str:
        """Returns the end of the server's log."""
        return (self._folder / "log").read_text(errors="replace")[-4000:]

    def _url(self) -> str:
        return f"tcp://127.0.0.1:{self._ports[0]}"

    def _wait(self) -> None:
        from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

        client, ends = RequestClientFactory.create(self._url()), time.monotonic() + _START_S
        try:
            while time.monotonic() < ends and self._process.poll() is None:
                try:
                    if client.ping(None).result(timeout=1.0):
                        return
                except TimeoutError:
                    continue
        finally:
            client.close()
        raise SystemExit(f"LMCache's server did not become ready: {self.log()}")


_ENVIRONMENT = {
    "LMCACHE_LOG_LEVEL": "WARNING",
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "HF_HUB_OFFLINE": "1",
}


def free_ports(count: int) -> list[int]:
    """Returns ports that were free a moment ago, below those that the kernel gives to connections."""
    found, numbers = [], np.random.default_rng(int.from_bytes(os.urandom(8))).permutation(np.arange(20000, 32000))
    for port in map(int, numbers):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
        if len(found) == count:
            break
    return found


def _wait_unchanged(read: Callable[[], int], seconds: float = 60.0) -> None:
    """Waits until a number has not changed for a second."""
    seen, ends = read(), time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(1.0)
        before, seen = seen, read()
        if before == seen:
            return
