"""The wheels that `make wheel` builds: each runs a daemon, stores and loads, in an environment without a compiler."""

from __future__ import annotations

import platform
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

import pagetier
from emulated_python import EmulatedPython
from installed_wheel import install_wheel, run, serving, store_and_load

WheelFor = Callable[[str], Path]
MACHINES = {"x86_64": 62, "aarch64": 183}  # the field e_machine of an ELF file
DAEMON = "from pagetier.daemon.main import main; main()"


@pytest.mark.parametrize("architecture", MACHINES)
def test_a_wheel_is_for_one_architecture_and_every_python(wheel_for: WheelFor, architecture: str) -> None:
    wheel = wheel_for(architecture)
    platforms = f"manylinux2014_{architecture}.manylinux_2_17_{architecture}"
    assert wheel.name == f"pagetier-{pagetier.__version__}-cp311-abi3-{platforms}.whl"
    with ZipFile(wheel) as files:
        (core,) = (name for name in files.namelist() if ".so" in name)
        head = files.read(core)[:20]
    assert core == "pagetier/shm/_core.abi3.so"
    assert struct.unpack("<18xH", head) == (MACHINES[architecture],)


def test_the_wheel_of_this_machine_works_without_a_compiler(wheel_for: WheelFor, folder: Path) -> None:
    place = install_wheel(wheel_for(platform.machine()), folder / "venv")
    path = str(place / "bin")
    assert not any(shutil.which(name, path=path) for name in ("cc", "gcc", "clang"))
    with serving([place / "bin/pagetierd"], folder, PATH=path) as socket:
        assert "4 of 4 pages loaded, equal" in store_and_load([place / "bin/python"], socket, PATH=path)
        assert "doctor" in run(place / "bin/pagetier", "--help", cwd=folder, PATH=path)


@pytest.mark.skipif(platform.machine() == "aarch64", reason="this machine needs no emulation")
def test_the_wheel_for_aarch64_works_under_emulation(wheel_for: WheelFor, folder: Path) -> None:
    python = EmulatedPython(folder)
    python.install(wheel_for("aarch64"))
    code = "import platform; from pagetier.shm import _core; print(platform.machine(), _core.__file__)"
    assert run(*python.command, "-c", code, cwd=folder, **python.environment).split() == [
        "aarch64",
        str(python.site / "pagetier/shm/_core.abi3.so"),
    ]
    with serving([*python.command, "-c", DAEMON], folder, **python.environment) as socket:
        assert "4 of 4 pages loaded, equal" in store_and_load(python.command, socket, **python.environment)
