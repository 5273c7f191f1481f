"""A control group with a memory limit: the kernel kills processes in it that exceed the limit."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eventually import eventually

# Version 1 has a separate hierarchy for memory, version 2 one for all controllers.
_TOPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
_LIMITS = ("memory.limit_in_bytes", "memory.max")
_KILLS = ("memory.oom_control", "memory.events")


class Group:
    """A control group in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def before(self) -> list[str]:
        """Returns a command that runs another command in the group."""
        return ["sh", "-c", f'echo $$ > {self._folder}/cgroup.procs && exec "$0" "$@"']

    @property
    def kills(self) -> int:
        """The number of processes in the group that the kernel has killed because memory was short."""
        texts = [(self._folder / name).read_text() for name in _KILLS if (self._folder / name).exists()]
        (kills,) = re.findall(r"^oom_kill (\d+)$", "\n".join(texts), re.MULTILINE)
        return int(kills)

    def limit(self, nbytes: int) -> None:
        """Sets the limit. Raises OSError if this user may not set it, or the kernel does not limit memory there."""
        (file,) = [self._folder / name for name in _LIMITS if (self._folder / name).exists()] or [self._folder / "none"]
        file.write_text(str(nbytes))

    def end(self) -> bool:
        """Returns whether the group was removed. It remains for a moment after its last process."""
        try:
            self._folder.rmdir()
        except OSError:
            return False
        return True


@contextmanager
def limited(nbytes: int) -> Iterator[Group]:
    """Yields a group with this limit. Skips the test if it cannot be made."""
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
        pytest.skip(f"cannot make a control group with a memory limit: {error}")
    try:
        yield group
    finally:
        assert eventually(group.end), folder
