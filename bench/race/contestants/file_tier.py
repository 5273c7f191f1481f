"""The plain alternative: one file for each page in a folder, on tmpfs or on disk. No server, no library.

A store writes a temporary file and renames it. When the folder holds more than its size, the files that were used
longest ago are removed. Nothing is verified.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from race.contestants.cache import OpenEngine, Pages, Sizes, Tokens, files_under, shared_prefix, sync_files


class FileEngine:
    """Reads and writes the files of one folder."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder, self._sizes = folder, sizes

    def prepare(self, tokens: Tokens) -> bytes:
        return tokens.tobytes()

    def lookup(self, prompt: bytes) -> int:
        return next((at for at, path in enumerate(self._paths(prompt)) if not path.exists()), self._pages(prompt))

    def store(self, prompt: bytes, pages: Pages) -> int:
        stored = 0
        for path, page in zip(self._paths(prompt), pages, strict=True):
            if not path.exists() and not self._write(path, page.tobytes()):
                break
            stored += 1
        self._evict()
        return stored

    def load(self, prompt: bytes, out: Pages) -> int:
        for at, path in enumerate(self._paths(prompt)):
            try:
                with path.open("rb", buffering=0) as file:
                    if file.readinto(out[at].data) != self._sizes.page:
                        return at
                with suppress(PermissionError):  # another user's file
                    os.utime(path)
            except FileNotFoundError:
                return at
        return self._pages(prompt)

    def begin_store(self, prompt: bytes, pages: Pages) -> int:
        for path, page in zip(self._paths(prompt), pages, strict=True):
            self._temporary(path).write_bytes(page.tobytes()[: self._sizes.page // 2])
        return len(pages)

    def begin_load(self, prompt: bytes) -> int:
        self._open = [path.open("rb") for path in self._paths(prompt) if path.exists()]
        return len(self._open)

    def close(self) -> None:
        """Nothing is open."""

    def _pages(self, prompt: bytes) -> int:
        return len(prompt) // (4 * self._sizes.page_tokens)

    def _paths(self, prompt: bytes) -> list[Path]:
        """Returns the file of each page, named by the chained hash of its tokens."""
        digest, step, paths = b"", 4 * self._sizes.page_tokens, []
        for at in range(0, self._pages(prompt) * step, step):
            digest = hashlib.sha256(digest + prompt[at : at + step]).digest()
            paths.append(self._folder / digest.hex())
        return paths

    @staticmethod
    def _temporary(path: Path) -> Path:
        return path.with_suffix(f".{os.getpid()}")

    def _write(self, path: Path, page: bytes) -> bool:
        partial = self._temporary(path)
        try:
            partial.write_bytes(page)
        except OSError:
            partial.unlink(missing_ok=True)
            return False
        partial.rename(path)
        return True

    def _evict(self) -> None:
        found = sorted(self._last_uses())
        for _, path in found[: max(0, len(found) - self._sizes.memory // self._sizes.page)]:
            path.unlink(missing_ok=True)

    def _last_uses(self) -> Iterator[tuple[int, Path]]:
        """Yields when each page was used, without those that another engine has just removed."""
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                if not path.suffix:
                    yield path.stat().st_mtime_ns, path


class FileTier:
    """A folder of pages.

    Args:
        sizes: The sizes; `memory` is what the folder may hold.
        parent: Where the folder is made: /dev/shm for tmpfs, or a folder on disk.
        name: The name in the report.
    """

    version = "bench/race/contestants/file_tier.py"

    def __init__(self, sizes: Sizes, parent: Path, name: str) -> None:
        self.name, self._parent = name, parent
        self._sizes = msgspec.structs.replace(sizes, memory=sizes.disk) if sizes.disk else sizes

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix=shared_prefix("files"), dir=self._parent))
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._folder)

    def opener(self) -> OpenEngine:
        return functools.partial(FileEngine, self._folder, self._sizes)

    def pids(self) -> Sequence[int]:
        return ()

    def restart(self) -> None:
        """There is no server."""

    def sync(self, pages: int) -> None:
        del pages
        sync_files(self.disk_files())

    def drop_memory(self) -> bool:
        return bool(self._sizes.disk)

    def disk_files(self) -> list[Path]:
        return files_under(self._folder)

    def leftovers(self) -> list[Path]:
        return [path for path in files_under(self._folder) if path.suffix]
