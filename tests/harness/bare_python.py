"""A Python like that of a machine with a GPU: pip, torch and Triton, nothing else; and wheels of the other packages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement


def bare_python(folder: Path) -> Path:
    """Returns the interpreter of a new environment that sees torch and Triton, but nothing else of this one."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in installed(["torch", "triton"]):
        names = {str(file).partition("/")[0] for file in package.files or ()} - {"..", "__pycache__"}
        if not any((site / name).exists() for name in names):  # setuptools, of which venv has one of its own
            for name in names:
                (site / name).symlink_to(Path(str(package.locate_file(name))))
    return folder / "bin/python"


def repacked(wanted: Iterable[str], folder: Path) -> None:
    """Makes wheels of what is installed here, because a download needs a network.

    The requirements of a wheel are those of a download, as `make gpu-bundle` makes it for another Python.
    """
    folder.mkdir()
    for package in installed(wanted):
        name = package.metadata["Name"].replace("-", "_")
        with zipfile.ZipFile(folder / f"{name}-{package.version}-{_tags(package)}.whl", "w") as wheel:
            for file in package.files or ():
                if not str(file).startswith("..") and file.suffix != ".pyc":
                    wheel.write(str(file.locate()), str(file))


def _tags(package: Distribution) -> str:
    """Returns the tags of a wheel as in its name, such as py2.py3-none-any."""
    lines = (package.read_text("WHEEL") or "").splitlines()
    tags = [line.removeprefix("Tag: ").split("-") for line in lines if line.startswith("Tag: ")]
    return "-".join(".".join(dict.fromkeys(each)) for each in zip(*tags, strict=True))


def installed(wanted: Iterable[str]) -> list[Distribution]:
    """Returns the installed packages that fulfil requirements, and all that those need."""
    found: dict[str, Distribution] = {}
    rest = [Requirement(each) for each in wanted]
    while rest:
        requirement = rest.pop()
        if requirement.name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            package = found[requirement.name] = _installed(requirement.name)
            rest += [Requirement(each) for each in package.requires or ()]
    return list(found.values())


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed: make pytest installs it")
