"""Builds of commits: a commit's files, its C core, and the folder from which Python imports its package."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "compare"
_ROOMS = ("shm", "tiers", "kernels", "client", "daemon")


class CannotCompareError(Exception):
    """The reason why two builds cannot be compared."""


class Build(msgspec.Struct, frozen=True):
    """A built commit.

    Attributes:
        name: How reports call it.
        imports: The folder that contains the package `pagetier`.
        settings: Names and values of environment variables that set up its daemons.
    """

    name: str
    imports: Path
    settings: tuple[tuple[str, str], ...] = ()

    def environment(self) -> dict[str, str]:
        """Returns the environment in which a process, and those that it starts, import this build.

        Folders in PYTHONPATH precede those of an editable install. Other settings of a daemon are left out.
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}
        return inherited | {"PYTHONPATH": str(self.imports)} | dict(self.settings)

    def foreign(self, files: Iterable[str]) -> list[str]:
        """Returns the files that are not part of this build's package, whose folders may be symbolic links."""
        package = self.imports / "pagetier"
        folders = {folder.resolve() for folder in (package, *package.iterdir())}
        return sorted(file for file in files if folders.isdisjoint(Path(file).resolve().parents))


def working_tree() -> Build:
    """Returns the build of the working tree, which `make core` has built."""
    commit = _git("rev-parse", "--short", "HEAD").decode().strip()
    changed = " with changes" if _git("status", "--porcelain", "--untracked-files=no") else ""
    return Build(f"{commit}{changed}", imports_of(ROOT))


def build(revision: str) -> Build:
    """Returns a build of a commit; it is kept in .cache/compare.

    Args:
        revision: Any name that git knows for the commit.

    Returns:
        The build.

    Raises:
        CannotCompareError: If there is no such commit, or this program cannot import its package.
    """
    try:
        commit = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError:
        raise CannotCompareError(f"there is no commit {revision!r}") from None
    folder = CACHE / commit
    if not folder.exists():
        _build_in(folder, commit)
    return Build(commit[:8], imports_of(folder))


def imports_of(folder: Path) -> Path:
    """Returns the folder of a source tree from which `pagetier` is imported.

    Trees from before src/pagetier had the rooms at the top and no package above them. They get one, because an
    installed `pagetier` with an `__init__.py` would win over a namespace package that precedes it.

    Raises:
        CannotCompareError: If the packages are in neither of these places.
    """
    if (folder / "src" / "pagetier" / "__init__.py").exists():
        return folder / "src"
    if not all((folder / room / "__init__.py").exists() for room in _ROOMS):
        raise CannotCompareError(
            f"{folder.name}: cannot import it, its packages are neither in src/pagetier nor at the top"
        )
    package = folder / ".imports" / "pagetier"
    if not package.exists():
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        for room in _ROOMS:
            (package / room).symlink_to(folder / room)
    return package.parent


def _build_in(folder: Path, commit: str) -> None:
    """Unpacks and builds a commit. The folder gets its name last, so an interrupted build is not kept."""
    partial = folder.with_suffix(f".{os.getpid()}")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # of Python 3.11.4
        files.extractall(partial)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    if subprocess.run(command, cwd=partial, check=False).returncode:
        raise CannotCompareError(f"{commit[:8]}: cannot build its C core in {partial}")
    partial.rename(folder)


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, check=True).stdout
