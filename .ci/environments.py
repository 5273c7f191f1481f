"""Makes the environments of engines and stores once for all clones on a machine, and lays pagetier over them.

    environments.py make NAME...    make .engines/NAME, where something changed
    environments.py old NAME...     list the environments that none of these names uses
    environments.py remove NAME...  remove them

What is heavy is in $XDG_CACHE_HOME/pagetier/environments/NAME-DIGEST, and the digest is that of all that it is made
from. It is made there under a lock, because a virtual environment cannot be moved, and `.whole` is written last: a
folder without it is made again. `.engines/NAME` is a virtual environment that takes a second to make: its packages are
this clone's pagetier and, by a .pth file, those of the shared one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from environment_layer import install_pagetier, link_folder, make_venv, packages_of
from environment_recipes import Step, recipe_of

CLONE = Path.cwd()
SHARED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "pagetier" / "environments"
_PROJECT = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
_DEPENDENCIES = " ".join(_PROJECT["dependencies"])
(_MOONCAKE,) = _PROJECT["optional-dependencies"]["mooncake"]
_STAMP = ".whole"
_TAIL_LINES = 5
_AT_A_TIME = 2  # pip waits for one core or for the network


class UnavailableError(Exception):
    """An environment cannot be made on this machine."""


class Environment:
    """A shared environment. `digest` covers all that it is made from.

    Args:
        name: The name of its layer in .engines.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.recipe = recipe_of(name)
        self.base = Environment(self.recipe.base) if self.recipe.base else None
        self.digest = self._digest()

    def _digest(self) -> str:
        made = [sys.version, platform.machine(), repr(self.recipe.steps), _DEPENDENCIES, _MOONCAKE]
        made += [(CLONE / name).read_text() for name in self.recipe.files]
        made += [self.base.digest] if self.base else []
        return hashlib.sha256(json.dumps(made).encode()).hexdigest()[:16]

    @property
    def folder(self) -> Path:
        """Where it is."""
        return SHARED / f"{self.name}-{self.digest}"

    def missing(self) -> list[str] | None:
        """Returns the parts that could not be had, or None if the environment is not whole."""
        try:
            return json.loads((self.folder / _STAMP).read_text())["missing"]
        except FileNotFoundError:
            return None


def make_shared(environment: Environment) -> None:
    """Makes a shared environment, or what it lacks. Raises UnavailableError if that fails."""
    if environment.missing() == []:
        return
    if environment.base:
        make_shared(environment.base)
    with _lock(environment) as lock:
        missing = environment.missing()  # another clone may have made it while this one waited
        if missing != []:
            _fill(environment, missing, lock)


@contextlib.contextmanager
def _lock(environment: Environment) -> Iterator[int]:
    """Takes the lock of an environment. The steps inherit it: one that outlives this process still holds it."""
    SHARED.mkdir(parents=True, exist_ok=True)
    with Path(f"{environment.folder}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"== {environment.name}: another process is making it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _fill(environment: Environment, missing: Sequence[str] | None, lock: int) -> None:
    """Runs the steps, or only those of missing parts, and writes the stamp."""
    started, folder = time.monotonic(), environment.folder
    if missing is None:
        print(f"== {environment.name}: making it in {folder} (some minutes)", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if environment.recipe.has_venv:
            _run(Step(f'"{sys.executable}" -m venv "$FOLDER"'), environment, lock)
    steps = [step for step in environment.recipe.steps if missing is None or step.part in missing]
    lacking = [step.part for step in steps if not _run(step, environment, lock)]
    stamp = {"missing": lacking, "made": time.strftime("%F"), "seconds": round(time.monotonic() - started)}
    written = folder / f"{_STAMP}.new"
    written.write_text(json.dumps(stamp))
    written.rename(folder / _STAMP)


def _run(step: Step, environment: Environment, lock: int) -> bool:
    """Runs a step and returns whether it succeeded. Raises UnavailableError if it is needed and fails."""
    command = ["sh", "-ec", step.command]
    done = subprocess.run(
        command, env=_variables(environment), cwd=CLONE, pass_fds=[lock], stdout=sys.stderr, stderr=subprocess.PIPE,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return True
    tail = "\n    ".join(done.stderr.strip().splitlines()[-_TAIL_LINES:])
    tried = f"status {done.returncode} of `{step.command}`, PIP={_variables(environment)['PIP']}:\n    {tail}"
    if not step.part:
        raise UnavailableError(f"the environment {environment.name} cannot be made: {tried}")
    again = f"`rm -r .engines/{environment.name}` before the next make tries again"
    print(f"== {environment.name}: no {step.part} here, its tests are skipped, {again}: {tried}", flush=True)
    return False


def _variables(environment: Environment) -> dict[str, str]:
    """Returns the variables of the steps. PYTHONPATH is left out: pip would find the packages there."""
    python = f"{environment.folder}/bin/python"
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return inherited | {
        "FOLDER": str(environment.folder),
        "PYTHON": python,
        "SITE": str(packages_of(environment.folder)),
        "PIP": f"{python} -m pip --quiet --disable-pip-version-check install",
        "DEPENDENCIES": _DEPENDENCIES,
        "MOONCAKE": _MOONCAKE,
        "BASE": str(environment.base.folder) if environment.base else "",
    }


def make_layer(environment: Environment) -> None:
    """Makes `.engines/NAME` unless it is made from the same things. It is whole when `.ready` is written."""
    layer = CLONE / ".engines" / environment.name
    ready, key = layer / ".ready", _key(environment)
    if ready.exists() and ready.read_text() == key and environment.missing() is not None:
        return
    make_shared(environment)
    shutil.rmtree(layer, ignore_errors=True)
    link_folder(environment.folder, layer)
    if environment.missing() != [step.part for step in environment.recipe.steps]:
        _lay_venv(environment, layer)
    ready.write_text(key)


def _lay_venv(environment: Environment, layer: Path) -> None:
    if environment.recipe.has_venv:
        make_venv(environment.folder, layer)
    if environment.recipe.runs_pagetier:
        install_pagetier(CLONE, layer)


def _key(environment: Environment) -> str:
    """Returns what a layer is made from, besides the files of pagetier to which it links."""
    files = (CLONE / name for name in (".ci/environment_layer.py", "pyproject.toml", "setup.py"))
    made = b"".join(path.read_bytes() for path in files)
    return f"{environment.folder} {sys.executable} {hashlib.sha256(made).hexdigest()}\n"


def others(names: Sequence[str]) -> list[Path]:
    """Returns the shared environments that none of these names uses: those of other requirements."""
    used = {Environment(name).folder for name in names}
    folders = (path for path in SHARED.glob("*") if path.is_dir())
    return sorted(path for path in folders if path not in used)


def remove(folder: Path) -> None:
    """Removes a shared environment, unless a process is making it."""
    with Path(f"{folder}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{folder}: a process is making it, not removed")
            return
        (folder / _STAMP).unlink(missing_ok=True)
        shutil.rmtree(folder)
        print(f"{folder}: removed")


def make(names: Sequence[str]) -> int:
    """Makes layers, several at a time, and returns the exit status."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        errors = [error for error in pool.map(_error_of, names) if error]
    print(*errors, sep="\n", end="\n" if errors else "", file=sys.stderr)
    return 1 if errors else 0


def _error_of(name: str) -> UnavailableError | None:
    """Makes a layer and returns why that failed."""
    try:
        make_layer(Environment(name))
    except UnavailableError as error:
        return error
    except OSError as error:
        return UnavailableError(f"the environment {name} cannot be kept in {SHARED}: {error}. Set XDG_CACHE_HOME")
    return None


def main(command: str, *names: str) -> int:
    """Runs a command of this program and returns the exit status."""
    if command == "make":
        return make(names)
    for folder in others(names):
        if command == "remove":
            remove(folder)
        else:
            print(f"of other requirements (make clean-environments removes it): {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
