"""`pagetier unit remove` removes what was installed, and leaves and names what is not its own."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from other_users import as_root
from pagetier.daemon.cli import main
from pagetier.daemon.cli.unit_removal import InstalledService
from service_world import ServiceWorld

UNITS = "etc/systemd/system"
CONFIG = "etc/pagetier/pagetierd.toml"
EVERYTHING = ("--metrics", "--remote", "10.0.0.0/8")


def unit(command: str, root: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["unit", command, "--root", str(root), *words])


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}


@pytest.fixture
def root() -> Iterator[Path]:
    """Yields a bare root folder, whose name is short enough for a socket in it, with the service installed."""
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        assert unit("install", Path(folder), *EVERYTHING).exit_code == 0
        yield Path(folder)


@pytest.fixture
def disk(root: Path) -> Path:
    """Returns the folder of a disk tier as the service leaves it, in a root with the service's user."""
    folder = root / "var/lib/pagetier"
    for name in ("owner", "state", "lookups", "0/data.mdb", "0/lock.mdb", "0/frames.0", "1.new/data.mdb"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(5000))
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\npagetier:x:990:990::/:/usr/sbin/nologin\n")
    (root / "etc/group").write_text("root:x:0:\npagetier:x:990:vllm\n")
    return folder


@pytest.mark.parametrize("words", [(), ("--tenant", "acme")])
def test_an_unmodified_installation_is_removed_without_a_trace(words: tuple[str, ...], tmp_path: Path) -> None:
    assert unit("install", tmp_path, *EVERYTHING, *words).exit_code == 0
    installed = files_below(tmp_path)
    result = unit("remove", tmp_path, *words)
    assert result.exit_code == 0, result.output
    assert {line.removeprefix(f"removed {tmp_path}/") for line in result.output.splitlines()[:-1]} == installed
    assert result.output.endswith("nothing has to be reloaded\n")
    assert not list(tmp_path.rglob("*")), "empty folders stay only where others are"
    assert unit("remove", tmp_path, *words).output == "no unit is installed\n"


def test_files_of_versions_without_a_mark_are_removed(root: Path) -> None:
    for name in files_below(root):
        (root / name).write_text((root / name).read_text().split("\n", 1)[1])
    (root / UNITS / "pagetierd-remote.service.d/30-addresses.conf").unlink()
    assert unit("remove", root).exit_code == 0
    assert files_below(root) == set()


def test_a_modified_configuration_stays_and_is_named(root: Path) -> None:
    with (root / CONFIG).open("a") as file:
        file.write("# mine\n")
    result = unit("remove", root)
    assert (result.exit_code, f"left {root / CONFIG}: it was modified" in result.output) == (0, True), result.output
    assert files_below(root) == {CONFIG}


@pytest.mark.parametrize("kind", ["modified", "mark", "link", "folder"])
def test_a_unit_that_is_not_as_installed_stays(kind: str, root: Path) -> None:
    file = root / UNITS / "pagetierd.service"
    text = file.read_text()
    if kind in ("modified", "mark"):
        file.write_text(text + "# mine\n" if kind == "modified" else text.split("\n", 1)[0] + "\n[Service]\n")
    else:
        file.unlink()
        file.symlink_to("/dev/null") if kind == "link" else file.mkdir()
    result = unit("remove", root)
    assert (result.exit_code, f"left {file}" in result.output) == (1, True), result.output
    assert file.is_symlink() or file.exists()


def test_files_that_were_not_installed_stay(root: Path) -> None:
    mine = [root / UNITS / "pagetierd.service.d/mine.conf", root / "etc/pagetier/copy.toml"]
    for file in mine:
        file.write_text("# mine\n")
    result = unit("remove", root)
    assert result.exit_code == 0, result.output
    assert files_below(root) == {str(file.relative_to(root)) for file in mine}


def test_templates_stay_for_other_tenants(tmp_path: Path) -> None:
    for tenant in ("acme", "beta"):
        assert unit("install", tmp_path, "--tenant", tenant, *EVERYTHING).exit_code == 0
    assert unit("remove", tmp_path, "--tenant", "acme").exit_code == 0
    left = files_below(tmp_path)
    assert f"{UNITS}/pagetierd@.service" in left and "etc/pagetier/beta.toml" in left
    assert not [name for name in left if "acme" in name]
    assert unit("remove", tmp_path, "--tenant", "beta").exit_code == 0
    assert files_below(tmp_path) == set()


def test_an_enabled_service_is_not_removed(root: Path, disk: Path) -> None:
    link = root / UNITS / "multi-user.target.wants/pagetierd.service"
    link.parent.mkdir()
    link.symlink_to("/etc/systemd/system/pagetierd.service")
    before = files_below(root)
    result = unit("remove", root, "--purge", "--yes")
    assert result.exit_code == 1
    assert "pagetierd.service is enabled, so nothing was removed; first: systemctl disable --now" in result.output
    assert files_below(root) == before


def test_a_daemon_that_runs_and_was_started_by_hand_has_its_own_remedy(root: Path, disk: Path) -> None:
    before = files_below(root)
    (root / "run/pagetier").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(root / "run/pagetier/pagetier.sock"))
        daemon.listen()
        result = unit("remove", root, "--purge", "--yes")
    by_hand = f"in use by a daemon that was started by hand, so nothing was removed; first: kill {os.getpid()}, or"
    assert result.exit_code == 1 and by_hand in " ".join(result.output.split()), result.output
    assert files_below(root) - {"run/pagetier/pagetier.sock"} == before
    assert unit("remove", root).exit_code == 0, "a socket that nothing listens on"


def test_a_service_that_runs_is_not_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = "0::/system.slice/pagetierd.service"
    read = Path.read_text
    in_proc = lambda path, **more: group if path.name == "cgroup" else read(path, **more)  # noqa: E731
    monkeypatch.setattr(Path, "read_text", in_proc)
    (root / "run/pagetier").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(root / "run/pagetier/pagetier.sock"))
        daemon.listen()
        result = unit("remove", root)
    text = " ".join(result.output.split())
    assert "in use by a daemon, so nothing was removed; first: systemctl disable --now pagetierd" in text


def test_without_purge_the_disk_and_the_user_stay(root: Path, disk: Path) -> None:
    assert unit("remove", root).exit_code == 0
    assert (disk / "0/data.mdb").exists() and "pagetier" in (root / "etc/passwd").read_text()


@as_root
def test_a_purge_removes_the_disk_and_the_user(root: Path, disk: Path) -> None:
    result = unit("remove", root, "--purge", "--yes")
    assert result.exit_code == 0, result.output
    assert f"removed {disk}\n" in result.output and not disk.exists()
    for name in ("passwd", "group"):
        assert "pagetier" not in (root / "etc" / name).read_text() and "root" in (root / "etc" / name).read_text()


def test_a_purge_asks_first(root: Path, disk: Path) -> None:
    before = files_below(root)
    result = unit("remove", root, "--purge")
    assert (result.exit_code, "use --yes to remove them" in result.output) == (2, True), result.output
    assert files_below(root) == before


@as_root
def test_a_purge_removes_the_folders_that_the_configuration_names(root: Path, disk: Path) -> None:
    (root / CONFIG).write_text('[disk]\npath = ["/mnt/a", "/mnt/b"]\nsize = "1GiB"\n')
    for name in "ab":
        (root / "mnt" / name / "0").mkdir(parents=True)
    assert unit("remove", root, "--purge", "--yes").exit_code == 0
    assert list((root / "mnt").iterdir()) == [] and not disk.exists()


@pytest.mark.parametrize("place", ["mine", "0/mine"])
def test_a_folder_with_other_files_stays_and_so_does_the_user(place: str, root: Path, disk: Path) -> None:
    (disk / place).write_text("mine")
    result = unit("remove", root, "--purge", "--yes")
    assert (result.exit_code, f"left {disk}: it contains other files ({disk / place})" in result.output) == (1, True)
    assert (disk / "0/data.mdb").exists() and "pagetier" in (root / "etc/passwd").read_text()


def test_no_link_is_followed(root: Path, disk: Path, tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_text("mine")
    (disk / "2").symlink_to(tmp_path)
    assert "contains other files" in unit("remove", root, "--purge", "--yes").output
    disk.rename(disk.with_name("moved"))
    disk.symlink_to("moved")
    assert "it is a link or a file" in unit("remove", root, "--purge", "--yes").output
    assert (tmp_path / "data.mdb").exists() and (disk / "0/data.mdb").exists()


def test_a_folder_in_use_stays(root: Path, disk: Path) -> None:
    with (disk / "owner").open("r+") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        result = unit("remove", root, "--purge", "--yes")
    assert (result.exit_code, f"left {disk}: it is in use by a daemon" in result.output) == (1, True)
    assert (disk / "0/data.mdb").exists()


@pytest.mark.parametrize("text", ["[disk", "disk = 1", "[disk]\npath = 1", '[disk]\npath = "relative"', ""])
def test_a_configuration_that_is_not_valid_leaves_the_default_folder(text: str, root: Path, disk: Path) -> None:
    (root / CONFIG).write_text(text)
    assert InstalledService(root, None).disk_folders() == [disk]


def test_the_service_is_removed_from_a_machine_and_can_be_installed_again(world: ServiceWorld) -> None:
    do = world.machine.do
    world.start()
    assert world.machine.run("pagetier", "unit", "remove").returncode == 1, "it runs"
    world.systemctl("stop")
    assert "removed /etc/systemd/system/pagetierd.service" in do("pagetier", "unit", "remove", "--purge", "--yes")
    do("systemctl", "daemon-reload")
    assert world.machine.run("id", "pagetier").returncode != 0
    left = do("sh", "-c", "ls -d /var/lib/pagetier /etc/systemd/system/pagetierd*.service 2>/dev/null || true")
    assert left == ""
    world.install()
