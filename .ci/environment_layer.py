"""Lays this clone's pagetier over a shared environment: `.engines/NAME`, a virtual environment that takes a second."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

_SCRIPT = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


def packages_of(folder: Path) -> Path:
    """Returns the folder of the packages of a virtual environment."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))


def link_folder(shared: Path, layer: Path) -> None:
    """Makes the layer of what is beside a virtual environment, such as libraries: links to it."""
    layer.mkdir(parents=True)
    for path in shared.iterdir():
        if path.name not in {"bin", "lib", "lib64", "include", "share", "pyvenv.cfg"} and not path.name.startswith("."):
            (layer / path.name).symlink_to(path)


def make_venv(shared: Path, layer: Path) -> None:
    """Makes a virtual environment in the layer that finds the packages and the programs of the shared one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", layer], check=True)
    # addsitedir, unlike a plain path, also reads the .pth files there.
    line = f"import site; site.addsitedir({str(packages_of(shared))!r})\n"
    (packages_of(layer) / "shared.pth").write_text(line)
    for program, place in _programs(shared, layer):
        _adopt(program, place, shared, layer)


def _programs(shared: Path, layer: Path) -> Iterator[tuple[Path, Path]]:
    """Yields the programs that the virtual environment itself does not have, and their places."""
    for program in sorted((shared / "bin").iterdir()):
        place = layer / "bin" / program.name
        if program.is_file() and not (place.exists() or program.name.startswith("pip")):
            yield program, place


def _adopt(program: Path, place: Path, shared: Path, layer: Path) -> None:
    """Copies a Python program, so that it runs in the layer, and links another one."""
    with program.open("rb") as file:
        is_script = file.read(2) == b"#!"
    if not is_script:
        place.symlink_to(program)
        return
    place.write_text(program.read_text().replace(f"{shared}/bin/python", f"{layer}/bin/python", 1))
    shutil.copymode(program, place)


def install_pagetier(clone: Path, layer: Path) -> None:
    """Installs this clone in its layer, as `pip install --editable` does it: a path, metadata, and programs."""
    packages = packages_of(layer)
    python = layer / "bin" / "python"
    command = [python, "setup.py", "--quiet", "dist_info", "--output-dir", packages]
    subprocess.run(command, cwd=clone, check=True)
    (packages / "pagetier.pth").write_text(f"{clone / 'src'}\n")
    for name, entry in tomllib.loads((clone / "pyproject.toml").read_text())["project"]["scripts"].items():
        module, _, function = entry.partition(":")
        program = layer / "bin" / name
        program.write_text(_SCRIPT.format(python=python, module=module, function=function))
        program.chmod(0o755)
