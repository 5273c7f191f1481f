"""The Containerfile's image, on a base of Debian's packages because a registry may be out of reach."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from eventually import eventually
from installed_wheel import run, serving, store_and_load
from other_pythons import pip, python_in, unpack_packages

ROOT = Path(__file__).resolve().parents[2]
DAEMONSET = ROOT / "docs/kubernetes/daemonset.yaml"
USER = 4710
MOST_MB = 150
DISK_S = 60
EXTRAS = "s3,fleet-key"
OFFLINE = ("--build-arg", "PYTHON=localhost/base", "--build-arg", "PIP_NO_INDEX=1")
PACKAGES = ("coreutils", "dash", "libstdc++6", "python3", "python3-pip")


class Images:
    """Buildah with storage of its own; it isolates by chroot, which needs root and no other runtime."""

    def __init__(self, folder: Path) -> None:
        buildah = shutil.which("buildah")
        if not buildah or os.geteuid():
            pytest.skip("there is no buildah, or this is not root")
        self.command = [buildah, "--root", f"{folder}/storage", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]
        self._cwd = folder

    def build(self, name: str, context: Path, *words: str) -> None:
        """Builds the Containerfile of a folder."""
        self.run("build", "--isolation", "chroot", "--tag", name, *words, str(context))

    def run(self, *words: str) -> str:
        """Returns the output of a command of buildah."""
        return run(*self.command, *words, cwd=self._cwd).strip()


@pytest.fixture
def images(folder: Path) -> Images:
    return Images(folder)


def make_base(images: Images, folder: Path) -> Path:
    """Makes the image `base` of Debian's Python, and returns its interpreter."""
    root = unpack_packages(folder / "debian", platform.machine(), PACKAGES)
    (root / "tmp").mkdir(mode=0o1777, exist_ok=True)
    (root.parent / "Containerfile").write_text("FROM scratch\nCOPY root/ /\n")
    images.build("base", root.parent)
    return python_in(root)


@pytest.fixture
def container(images: Images, folder: Path, wheel_for: Callable[[str], Path]) -> str:
    """Returns the name of a container of the image, whose Python downloads nothing."""
    wheel, context = wheel_for(platform.machine()), folder / "context"
    (context / "dist").mkdir(parents=True)
    for name in ("Containerfile", ".dockerignore", "constraints.txt"):
        shutil.copy(ROOT / name, context)
    python = make_base(images, folder)
    pip("download", "--dest", context / "dist", f"{wheel}[{EXTRAS}]", python=python, architecture=platform.machine())
    images.build("pagetier", context, *OFFLINE)
    images.build("pagetier-remote", context, *OFFLINE, "--build-arg", f"EXTRAS={EXTRAS}")
    return images.run("from", "pagetier")


def test_the_daemon_of_the_image_serves_the_host(images: Images, folder: Path, container: str) -> None:
    shared = folder / "shared"
    shared.mkdir()
    os.chown(shared, USER, USER)
    volumes = [f"--volume={each}:{each}" for each in (shared, Path("/dev/shm"))]
    inside = ["run", "--isolation", "chroot", *volumes, container, "--"]
    owners = "id -u; stat -c %u /run/pagetier /var/lib/pagetier"
    assert images.run(*inside, "sh", "-c", owners).split() == [str(USER)] * 3
    assert images.run(*inside, "sh", "-c", "command -v cc gcc clang || true") == ""
    assert int(images.run(*inside, "du", "-sm", "/opt/pagetier").split()[0]) < MOST_MB
    disk = ["--disk-path", "/var/lib/pagetier/disk", "--disk-size", "64MiB"]
    with serving([*images.command, *inside, "pagetierd", *disk], shared) as socket:
        assert "4 of 4 pages loaded, equal" in store_and_load([sys.executable], socket)
        assert eventually(lambda: "event=disk_open" in (shared / "log").read_text(), DISK_S)
        images.run(*inside, "pagetier", "flush", "--to-disk", "--socket", str(socket))
        assert int(images.run(*inside, "du", "-sm", "/var/lib/pagetier/disk").split()[0]) >= 4
        images.run(*inside, "pagetier", "stats", "--wait", "10s", "--socket", str(socket))
    _check_worker(images)


def _check_worker(images: Images) -> None:
    """Asserts that the image of the fleet's worker has the libraries of its stores. Images are expensive to make."""
    container = images.run("from", "pagetier-remote")
    modules = "import cryptography, obstore, pagetier.tiers.worker.disk_worker"
    images.run("run", "--isolation", "chroot", container, "--", "python3", "-c", modules)


def test_the_pods_run_the_image_as_its_user() -> None:
    """The user of the image owns its folders, and the DaemonSet names the same one."""
    (daemon,) = (each for each in yaml.safe_load_all(DAEMONSET.read_text()) if each["kind"] == "DaemonSet")
    context = daemon["spec"]["template"]["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (USER, USER)
    assert f"USER {USER}:{USER}\n" in (ROOT / "Containerfile").read_text()
