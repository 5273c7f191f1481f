"""Tests the packages: an sdist that needs only a C compiler, a wheel that works in an empty environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import msgspec
import pytest
from packaging.requirements import Requirement

import pagetier
from eventually import eventually

ROOT = Path(__file__).parents[2]
ROOMS = ("shm", "tiers", "kernels", "client", "daemon")
BESIDE = ("docs", "systemd", "bench", "tests", ".ci")
ABOUT = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "Makefile")
BUILT = shutil.ignore_patterns("*.so", "__pycache__", "build")
LIMIT_S = 300


class Built(msgspec.Struct, frozen=True):
    """The packages that were built from the sources."""

    sdist: Path
    wheel: Path


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=own | environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Returns an sdist of a copy of the sources, and a wheel that was built from that sdist only."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("sources")
    for name in (*ROOMS, "docs", "systemd"):
        shutil.copytree(ROOT / name, folder / name, ignore=BUILT)
    shutil.copytree(ROOT / "src", folder / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in (*ABOUT, "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder, cwd=folder, CC="gcc")
    (sdist,), (wheel,) = (list((folder / "dist").glob(f"*{end}")) for end in (".tar.gz", ".whl"))
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def place(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns an environment with the wheel and its declared dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=False)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", folder / "bin/python")
    run(*pip, "install", "--no-deps", "--no-index", built.wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (ours,) = metadata.distributions(name="pagetier", path=[str(site)])
    for needed in needs(ours, set()):
        link(metadata.distribution(needed), site)
    return folder


def needs(of: metadata.Distribution, known: set[str]) -> set[str]:
    """Returns the names of a distribution's dependencies, including indirect ones, without extras."""
    wanted = [Requirement(text) for text in of.requires or ()]
    new = {each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})} - known
    known |= new
    for name in new:
        needs(metadata.distribution(name), known)
    return known


def link(of: metadata.Distribution, site: Path) -> None:
    """Makes an installed distribution importable from another environment."""
    tops = {file.parts[0] for file in of.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        (site / top).symlink_to(Path(str(of.locate_file(top))).resolve())


def test_the_wheel_is_one_for_all_versions_of_python(built: Built) -> None:
    assert re.fullmatch(r"pagetier-[0-9.]+-cp311-abi3-linux_\w+\.whl", built.wheel.name)
    with ZipFile(built.wheel) as wheel:
        names = wheel.namelist()
    assert [name for name in names if name.endswith(".so")] == ["pagetier/shm/_core.abi3.so"]
    documents = ("CHANGELOG.md", "installation.md", "configuration.md", "design/disk.md", "monitoring/alerts.yml")
    for page in ("man/man1/pagetier.1", *(f"doc/pagetier/{name}" for name in documents)):
        assert any(name.endswith(f"share/{page}") for name in names)
    assert any(name.endswith("share/doc/pagetier/kubernetes/daemonset.yaml") for name in names)
    assert not any(name.startswith(("tests", "bench")) for name in names)


def test_the_sdist_has_all_sources_and_no_build_output(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    sources = ("src/pagetier/shm/_core.c", "src/pagetier/shm/core/common/layout.h", "docs/man/pagetierd.8")
    assert {"setup.py", "LICENSE", *sources} <= set(names)
    assert not any(name.endswith((".so", ".o", ".pyc")) for name in names)


def test_the_version_is_defined_in_one_place(place: Path, built: Built) -> None:
    version = pagetier.__version__
    assert built.wheel.name.split("-")[1] == version
    assert run(place / "bin/pagetier", "--version", cwd=place).startswith(f"pagetier {version} (")
    named = re.compile(rf"(?<![0-9.]){re.escape(version)}(?![0-9])")
    assert [path for path, text in _texts() if named.search(text)] == []


def _texts() -> Iterator[tuple[Path, str]]:
    """Yields the texts that are written by hand."""
    made = (ROOT / "docs/man").iterdir()  # with the version, which test_man.py compares
    others = {ROOT / "src/pagetier/__init__.py", ROOT / "CHANGELOG.md", ROOT / "constraints.txt", *made}
    below = (path for folder in (*ROOMS, *BESIDE, "src/pagetier") for path in (ROOT / folder).rglob("*"))
    for path in {*ROOT.iterdir(), *below} - others:
        if path.is_file() and not {"__pycache__", "build"} & set(path.parts):
            with suppress(UnicodeDecodeError):
                yield path, path.read_text()


def test_the_daemon_of_the_wheel_serves(place: Path, tmp_path: Path) -> None:
    config, socket = tmp_path / "pagetierd.toml", tmp_path / "pagetier.sock"
    name = f"pagetier-test-shipped-{os.getpid()}"
    config.write_text(f'name = "{name}"\nsocket = "{socket}"\n[arena]\nsize = "4MiB"\nframe_size = "64KiB"\n')
    with (tmp_path / "log").open("wb") as log, _daemon(place, config, log.fileno()) as daemon:
        assert eventually(lambda: "event=ready" in (tmp_path / "log").read_text(), 30), (tmp_path / "log").read_text()
        output = json.loads(run(place / "bin/pagetier", "stats", "--json", "--socket", socket, cwd=tmp_path))
        assert output["tiers"]["memory"]["cap"] == 4 << 20
        code = f"from pagetier.client import Client; assert Client({str(socket)!r}).wait_attached(9)"
        run(place / "bin/python", "-c", code, cwd=tmp_path)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
    assert list(Path("/dev/shm").glob(f"{name}.*")) == []


def test_the_units_of_the_wheel_start_the_wheels_daemon(place: Path, tmp_path: Path) -> None:
    output = run(place / "bin/pagetier", "unit", "install", "--root", tmp_path, cwd=tmp_path)
    assert "systemctl enable --now pagetierd" in output
    unit = (tmp_path / "etc/systemd/system/pagetierd.service").read_text()
    assert f"ExecStart={place}/bin/pagetierd --config /etc/pagetier/pagetierd.toml" in unit
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    services = ["pagetierd-give-back.service", "pagetierd-memory.service", "pagetierd.service"]
    assert names == ["10-sandbox.conf", "10-sandbox.conf", "pagetier.conf", *services, "pagetierd.toml"]


def _daemon(place: Path, config: Path, log: int) -> subprocess.Popen[bytes]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}
    return subprocess.Popen([place / "bin/pagetierd", "--config", config], stderr=log, env=own)


def test_wheels_for_both_architectures_are_configured() -> None:
    output = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert set(output["archs"]) == {"x86_64", "aarch64"}
    assert output["build"].startswith("cp311-")
