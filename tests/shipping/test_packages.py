"""Tests the packages: an sdist that needs only a C compiler, a wheel that works in an empty environment."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

import msgspec
import pytest

import pagetier
from installed_wheel import install_wheel, run, serving, store_and_load

ROOT = Path(__file__).parents[2]
PACKAGES = ("shm", "tiers", "kernels", "client", "daemon")
ABOUT = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "Makefile")
QUICK = """sh -c 'exec gcc "$@" -O0' gcc"""  # to optimize takes most of the time
EMPTY = """sh -c 'while test $# -gt 0; do test "$1" = -o && : > "$2"; shift; done' gcc"""  # makes empty files
BUILD = (sys.executable, "-m", "build", "--no-isolation")
BUILT = shutil.ignore_patterns("*.so", "__pycache__", "build")


class Built(msgspec.Struct, frozen=True):
    """The packages that were built from the sources."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Returns an sdist of a copy of the sources, and a wheel that was built from that sdist only."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("sources")
    copy_sources(folder)
    run(*BUILD, "--outdir", folder / "dist", folder, cwd=folder, CC=QUICK)
    (sdist,), (wheel,) = (list((folder / "dist").glob(f"*{end}")) for end in (".tar.gz", ".whl"))
    return Built(sdist, wheel)


def copy_sources(folder: Path) -> None:
    """Copies what packages are built from, without what builds have made."""
    for name in (*PACKAGES, "docs", "systemd"):
        shutil.copytree(ROOT / name, folder / name, ignore=BUILT)
    shutil.copytree(ROOT / "src", folder / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in (*ABOUT, "constraints.txt"):
        shutil.copy(ROOT / name, folder)


@pytest.fixture(scope="module")
def place(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns an environment with the wheel and its declared dependencies, and nothing else."""
    return install_wheel(built.wheel, tmp_path_factory.mktemp("empty") / "venv")


def test_the_wheel_is_one_for_all_versions_of_python(built: Built) -> None:
    assert re.fullmatch(r"pagetier-[0-9.]+(\.dev[0-9]+)?-cp311-abi3-linux_\w+\.whl", built.wheel.name)
    with ZipFile(built.wheel) as wheel:
        names = wheel.namelist()
    assert [name for name in names if name.endswith(".so")] == ["pagetier/shm/_core.abi3.so"]
    documents = ("CHANGELOG.md", "installation.md", "configuration.md", "design/disk.md", "monitoring/alerts.yml")
    for page in ("man/man1/pagetier.1", *(f"doc/pagetier/{name}" for name in documents)):
        assert any(name.endswith(f"share/{page}") for name in names)
    for file in ("kubernetes/daemonset.yaml", "docker/compose.yaml"):
        assert any(name.endswith(f"share/doc/pagetier/{file}") for name in names)
    assert not any(name.startswith(("tests", "bench")) for name in names)


def test_the_sdist_has_all_sources_and_no_build_output(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    sources = ("src/pagetier/shm/_core.c", "src/pagetier/shm/core/common/layout.h", "docs/man/pagetierd.8")
    assert {"setup.py", "LICENSE", *sources} <= set(names)
    assert not any(name.endswith((".so", ".o", ".pyc")) for name in names)


def test_an_install_writes_nothing_into_the_checkout(tmp_path: Path) -> None:
    """Several users install from one checkout, and pip builds a wheel for it."""
    pytest.importorskip("build")
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    copy_sources(checkout)
    before = sorted(checkout.rglob("*"))
    run(*BUILD, "--wheel", "--outdir", tmp_path / "dist", checkout, cwd=tmp_path, CC=EMPTY)
    assert len(list((tmp_path / "dist").glob("*.whl"))) == 1 and sorted(checkout.rglob("*")) == before


def test_the_version_is_defined_in_one_place(place: Path, built: Built) -> None:
    version = pagetier.__version__
    assert built.wheel.name.split("-")[1] == version
    assert run(place / "bin/pagetier", "--version", cwd=place).startswith(f"pagetier {version} (")
    named = re.compile(rf"(?<![0-9.]){re.escape(version)}(?![0-9])")
    assert [path for path, text in _texts() if named.search(text)] == []


def _texts() -> Iterator[tuple[Path, str]]:
    """Yields the texts that are written by hand, and not what other tests or a user have put beside them."""
    made = (ROOT / "docs/man").iterdir()  # with the version, which test_man.py compares
    measured = {ROOT / "docs/race.md", *(ROOT / "bench/results").rglob("*")}  # with the versions that were measured
    others = {ROOT / "src/pagetier/__init__.py", ROOT / "CHANGELOG.md", ROOT / "constraints.txt", *made, *measured}
    tracked = run("git", "ls-files", "-z", cwd=ROOT).rstrip("\0").split("\0")
    for path in {ROOT / name for name in tracked} - others:
        if path.is_file():
            with suppress(UnicodeDecodeError):
                yield path, path.read_text()


def test_the_daemon_of_the_wheel_serves(place: Path, tmp_path: Path) -> None:
    with serving([place / "bin/pagetierd"], tmp_path) as socket:
        output = json.loads(run(place / "bin/pagetier", "stats", "--json", "--socket", socket, cwd=tmp_path))
        assert output["tiers"]["memory"]["cap"] == 8 << 20
        assert "4 of 4 pages loaded, equal" in store_and_load([place / "bin/python"], socket)


def test_the_units_of_the_wheel_start_the_wheels_daemon(place: Path, tmp_path: Path) -> None:
    output = run(place / "bin/pagetier", "unit", "install", "--root", tmp_path, cwd=tmp_path)
    assert f"systemctl --root={tmp_path} enable pagetierd" in output
    unit = (tmp_path / "etc/systemd/system/pagetierd.service").read_text()
    assert f"ExecStart={place}/bin/pagetierd --config /etc/pagetier/pagetierd.toml" in unit
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    services = ["pagetierd-memory.service", "pagetierd-release-memory.service", "pagetierd.service"]
    assert names == ["10-sandbox.conf", "10-sandbox.conf", "pagetier.conf", *services, "pagetierd.toml"]
