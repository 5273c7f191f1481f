"""pagetier as a contestant: a daemon, and a Client in each engine."""

from __future__ import annotations

import functools
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from daemon_setup import Stage
from disk_setup import Scene, data_files, until
from pagetier import __version__
from pagetier.client import Client, Keys, Namespace
from race.contestants.cache import OpenEngine, Pages, Sizes, Tokens, files_under

_START_S = 60.0


class PagetierEngine:
    """A client of the daemon."""

    def __init__(self, socket: Path, sizes: Sizes, timeout: float = 1.0) -> None:
        self._sizes = sizes
        self._space = Namespace(model="race", dtype="bfloat16", page_tokens=sizes.page_tokens)
        self._client = Client(socket, timeout=timeout)
        self._client.wait_attached(_START_S)

    def prepare(self, tokens: Tokens) -> Tokens:
        return tokens

    def lookup(self, prompt: Tokens) -> int:
        with self._client.match(self._keys(prompt)) as match:
            return len(match)

    def store(self, prompt: Tokens, pages: Pages) -> int:
        result = self._client.store(self._keys(prompt), pages)
        return result.stored + result.present

    def load(self, prompt: Tokens, out: Pages) -> int:
        keys = self._keys(prompt)
        if self._sizes.disk:
            self._client.prefetch(keys, 60).wait(60)
        with self._client.match(keys) as match:
            return self._client.load(match, out[: len(match)]) if len(match) else 0

    def begin_store(self, prompt: Tokens, pages: Pages) -> int:
        self._reservation = self._client.reserve(self._keys(prompt), self._sizes.page)
        for at in range(len(pages)):
            self._reservation.write(at, pages[at][: self._sizes.page // 2])
        return len(self._reservation.granted)

    def begin_load(self, prompt: Tokens) -> int:
        self._match = self._client.match(self._keys(prompt))
        return len(self._match)

    def close(self) -> None:
        self._client.close()

    def _keys(self, prompt: Tokens) -> Keys:
        return self._space.keys(prompt)


class HashedEngine(PagetierEngine):
    """A client that gets vLLM's block hashes, as pagetier's connector does, and no token IDs."""

    def prepare(self, tokens: Tokens) -> Any:
        digest, step, hashes = b"", self._sizes.page_tokens, []
        for at in range(0, len(tokens) - step + 1, step):
            digest = hashlib.sha256(digest + tokens[at : at + step].tobytes()).digest()
            hashes.append(digest)
        return hashes

    def _keys(self, prompt: Any) -> Keys:
        return self._space.keys_of_hashes(prompt)


class PagetierCache:
    """A daemon with the given sizes.

    Args:
        sizes: The sizes.
        disk_parent: Where the folder of the disk tier is made.
        options: Further arguments of pagetierd.
        engine: The class of its engines.
    """

    name = "pagetier"

    def __init__(
        self,
        sizes: Sizes,
        disk_parent: Path,
        options: Sequence[str] = (),
        engine: type[PagetierEngine] = PagetierEngine,
    ) -> None:
        self._sizes, self._options, self._engine = sizes, options, engine
        self._parent = disk_parent
        self.version = __version__

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="race-pagetier-", dir=self._parent))
        frame = min(self._sizes.page, 1 << 20)
        sizes = ["--arena-size", str(self._sizes.memory), "--set", f"arena.frame_size={frame}", *self._options]
        if self._sizes.disk:
            self._stage: Stage = Scene(self._folder, *sizes, "--disk-size", str(self._sizes.disk))
        else:
            self._stage = Stage(*sizes)
        self._stage.__enter__()
        self._wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._stage.__exit__(None, None, None)
        shutil.rmtree(self._folder, ignore_errors=True)

    def opener(self) -> OpenEngine:
        return functools.partial(self._engine, self._stage.socket, self._sizes)

    def pids(self) -> Sequence[int]:
        return (self._stage.pid,)

    def restart(self) -> None:
        self._stage.start()
        self._wait()

    def sync(self, pages: int) -> None:
        del pages
        if isinstance(self._stage, Scene):
            self._stage.ask_saved()

    def drop_memory(self) -> bool:
        if not isinstance(self._stage, Scene):
            return False
        self._stage.ask_saved()
        self._stage.wait_until_nothing_is_saved()
        self._stage.flush("memory")
        return True

    def disk_files(self) -> list[Path]:
        return data_files(self._stage.disk) if isinstance(self._stage, Scene) else []

    def leftovers(self) -> list[Path]:
        return [path for path in files_under(Path("/dev/shm")) if path.name.startswith(self._stage.name)]

    def _wait(self) -> None:
        self._stage.client().close()
        if isinstance(self._stage, Scene):
            until("disk", self._stage.disk_open)
