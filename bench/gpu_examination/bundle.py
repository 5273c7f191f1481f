"""Makes the folder of wheels that the GPU examination installs on a machine that downloads nothing.

It has what a Python with torch and Triton may lack: the dependencies of pagetier, of its tests and of its build, for
CPython 3.12 on x86-64. `packages.py` installs them there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 60 << 20
TOOLS = ("hypothesis", "pytest", "pytest-xdist", "setuptools", "wheel")
FITS = re.compile(
    r"-(?:cp312-cp312|cp3(?:[2-9]|1[012])-abi3|(?:py2\.)?py3-none)-(?:any|[\w.]*manylinux[\w.]*_x86_64)\.whl$"
)
HEADER = """\
# Installed by: pip install --no-index --find-links THIS_FOLDER --requirement THIS_FILE
# `make gpu` installs only what is missing, into a folder of its own.
"""


def requirements() -> list[str]:
    """Returns what pagetier, its GPU tests and its build need besides torch and Triton."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tools = (each for each in project["optional-dependencies"]["dev"] if re.split(r"[^\w-]", each)[0] in TOOLS)
    return sorted([*project["dependencies"], *tools])


def platforms() -> Iterator[str]:
    """Yields pip's names for x86-64 Linux with glibc 2.5 to 2.39: pip does not conclude that older ones fit too."""
    yield from (f"manylinux_2_{minor}_x86_64" for minor in range(39, 4, -1))
    yield from (f"manylinux{name}_x86_64" for name in ("2014", "2010", "1"))


def download(folder: Path) -> None:
    """Downloads the wheels in the versions of constraints.txt, with all that they depend on."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--dest", str(folder)]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.12"]
    command += [word for name in platforms() for word in ("--platform", name)]
    subprocess.run([*command, "--constraint", str(ROOT / "constraints.txt"), *requirements()], check=True)


def commit() -> str:
    """Returns the commit of this tree, and whether it was changed since; empty without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout


def problems(folder: Path) -> Iterator[str]:
    """Yields why a bundle cannot be used: wheels of another Python or machine, missing wheels, too many bytes."""
    names = sorted(path.name for path in folder.glob("*.whl"))
    yield from (f"{name} is not for CPython 3.12 on x86-64" for name in names if not FITS.search(name))
    yield from (f"there is no wheel of {name}" for name in absent(names, requirements()))
    if (nbytes := size(folder)) > MOST_BYTES:
        yield f"{nbytes} bytes are more than {MOST_BYTES}"


def absent(names: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """Returns the projects of requirements that have no wheel."""
    there = {_plain(name.partition("-")[0]) for name in names}
    projects = (_plain(re.split(r"[^\w-]", each)[0]) for each in wanted)
    return [name for name in projects if name not in there]


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def size(folder: Path) -> int:
    """Returns the bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> int:
    """Makes the bundle and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    download(folder)
    (folder / "commit").write_text(commit())  # the tree may be copied without its history
    (folder / "requirements.txt").write_text(HEADER + "".join(f"{each}\n" for each in requirements()))
    found = list(problems(folder))
    print(*found, f"{folder}: {len(list(folder.glob('*.whl')))} wheels, {size(folder) / 2**20:.1f} MiB", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
