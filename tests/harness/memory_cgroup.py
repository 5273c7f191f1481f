"""A control group of the test's own with a limit of memory: what runs in it is killed for one byte more."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from running_daemon import eventually

# version 1 has a hierarchy for memory alone, version 2 one for all
_TOPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
_LIMITS = ("memory.limit_in_bytes", "memory.max")
_KILLS = ("memory.oom_control", "memory.events")


class Group:
    """In a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def before(self) -> list[str]:
        """A command that runs another one in it."""
        return ["sh", "-c", f'echo $$ > {self._folder}/cgroup.procs && exec "$0" "$@"']

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed in it for want of memory."""
        texts = [(self._folder / name).read_text() for name in _KILLS if (self._folder / name).exists()]
        (kills,) = re.findall(r"^oom_kill (\d+)$", "\n".join(texts), re.MULTILINE)
        return int(kills)

    def limit(self, nbytes: int) -> None:
        """Raises OSError where this user may not, or the kernel does not bound memory there."""
        (file,) = [self._folder / name for name in _LIMITS if (self._folder / name).exists()] or [self._folder / "none"]
        file.write_text(str(nbytes))

    def end(self) -> bool:
        """Whether it is gone: it stays for a moment after its last process."""
        try:
            self._folder.rmdir()
        except OSError:
            return False
        return True


@contextmanager
def limited(nbytes: int) -> Iterator[Group]:
    """A group of so many bytes, where there can be one; skips the test where there can not."""
    top = next((top for top in _TOPS if (top / "cgroup.procs").exists()), None)
    if top is None:
        pytest.skip("no control groups here")
    folder = top / f"pagetier-test-{secrets.token_hex(6)}"
    group = Group(folder)
    try:
        folder.mkdir()
        group.limit(nbytes)
    except OSError as error:
        group.end()
        pytest.skip(f"no control group with a limit of memory can be made here: {error}")
    try:
        yield group
    finally:
        assert eventually(group.end), folder
