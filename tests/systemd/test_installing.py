"""`pagetier unit install` over files of an earlier installation, and for tenants with any name."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from other_users import as_root
from pagetier.daemon.cli import main, unit, unit_files
from pagetier.daemon.host.listening_socket import open_socket

UNIT = "etc/systemd/system/pagetierd.service"
SANDBOX = "etc/systemd/system/pagetierd.service.d/10-sandbox.conf"
METRICS = "etc/systemd/system/pagetierd.service.d/metrics-on-localhost.conf"
PROGRAM = Path(sys.executable).with_name("pagetierd")
RUN = 'from pagetier.daemon.cli import main; main(prog_name="pagetier")'


def install(root: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["unit", "install", "--root", str(root), *words])


def assert_ends(result: Result, code: int, *words: str) -> None:
    """Asserts that a command ended with this code and said this."""
    assert (result.exit_code, [word for word in words if word not in result.output]) == (code, []), result.output


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a root with this version's files. The next installation is of a version with other ones."""
    root, package = tmp_path / "root", tmp_path / "package"
    assert install(root, "--metrics").exit_code == 0
    package.mkdir()
    for file in unit_files._FILES.iterdir():
        if file.is_file():
            (package / file.name).write_bytes(file.read_bytes())
    for place in (UNIT, SANDBOX, METRICS):
        with (package / Path(place).name).open("a") as text:
            text.write("# newer\n")
    monkeypatch.setattr(unit_files, "_FILES", package)
    return root


@pytest.fixture
def private_umask() -> Iterator[None]:
    """Sets the umask that some administrators have for root."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def modes_below(folder: Path) -> set[tuple[bool, int]]:
    """Returns the modes of all files and folders, with whether it is a folder."""
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in folder.rglob("*")}


@pytest.mark.usefixtures("private_umask")
def test_the_service_can_read_what_a_root_with_a_private_umask_installed(tmp_path: Path) -> None:
    for words in ((), ("--tenant", "acme"), ("--metrics", "--remote", "localhost")):
        assert install(tmp_path / "root", *words).exit_code == 0
    assert modes_below(tmp_path / "root") == {(True, 0o755), (False, 0o644)}


@pytest.mark.usefixtures("private_umask")
def test_the_folder_of_a_socket_is_for_all_users_whatever_the_umask_is(tmp_path: Path) -> None:
    open_socket(tmp_path / "a" / "b" / "s", 0o660).close()
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")} == {
        "b": 0o755,
        "s": 0o660,
    }


@as_root
@pytest.mark.parametrize(("closed", "right"), [("etc/pagetier", "o+x"), ("etc/pagetier/pagetierd.toml", "o+r")])
def test_a_configuration_that_the_service_cannot_read_is_named(tmp_path: Path, closed: str, right: str) -> None:
    assert "chmod" not in install(tmp_path).output
    mode = (tmp_path / closed).stat().st_mode
    (tmp_path / closed).chmod(mode & 0o700)
    assert f"chmod {right} {tmp_path / closed}" in install(tmp_path).output
    os.chown(tmp_path / closed, 0, 4710)  # an administrator may allow a group instead
    (tmp_path / closed).chmod(mode & 0o750)
    assert "chmod" not in install(tmp_path).output


def test_newer_units_and_drop_ins_replace_unmodified_ones(newer: Path) -> None:
    result = install(newer)
    for file in (UNIT, SANDBOX, METRICS):
        assert (result.exit_code, f"installed {newer / file}" in result.output) == (0, True), result.output
        assert "# newer\n" in (newer / file).read_text()
    assert "installed" not in install(newer).output


def test_a_unit_that_starts_another_installation_counts_as_unmodified(newer: Path) -> None:
    unit = newer / UNIT
    here = unit.read_text()
    assert here.count(f"{PROGRAM} --config") == 3
    unit.write_text(here.replace(str(PROGRAM), "/opt/another/bin/pagetierd"))
    assert install(newer).exit_code == 0
    assert unit.read_text().split("\n", 1)[1] == here.split("\n", 1)[1] + "# newer\n"


def test_a_python_that_the_service_cannot_access_is_named_apart_from_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, bin_of = tmp_path / "home/.pyenv/python3", tmp_path / "opt/bin"
    for folder in (hidden.parent, bin_of):
        folder.mkdir(parents=True)
    hidden.touch()
    (bin_of / "pagetierd").touch()
    (bin_of / "python3").symlink_to(hidden)
    monkeypatch.setattr(unit, "_HIDDEN", (str(tmp_path / "home"),))
    monkeypatch.setattr(sys, "executable", str(bin_of / "python3"))
    named = f"cannot access {hidden}, the Python that this environment was made with"
    assert_ends(install(tmp_path / "root"), 0, named, "/usr/bin/python3 -m venv")
    monkeypatch.setattr(unit, "_HIDDEN", (str(tmp_path / "opt"), str(tmp_path / "home")))
    assert_ends(install(tmp_path / "root"), 0, f"cannot access {bin_of / 'pagetierd'}", "install to /opt or /usr")


@pytest.mark.parametrize("file", [UNIT, SANDBOX])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("e", "E", 1),
        lambda text: f"{text}# mine\n",
        lambda text: f"\n{text}",
        lambda text: text[:-1],
        lambda text: "",
    ],
)
def test_a_modified_file_is_kept_and_a_drop_in_suggested(newer: Path, file: str, change: Callable[[str], str]) -> None:
    mine = change((newer / file).read_text())
    (newer / file).write_text(mine)
    assert_ends(install(newer), 1, f"modified, so not replaced: {file};", "systemctl edit")
    assert (newer / file).read_text() == mine
    assert install(newer, "--force").exit_code == 0
    assert "# newer\n" in (newer / file).read_text()


@pytest.mark.parametrize("there", [b"# caf\xe9\n", b"\x7fELF\x00\xff"])
def test_installed_files_that_are_not_utf_8_are_kept(there: bytes, newer: Path) -> None:
    config = newer / "etc/pagetier/pagetierd.toml"
    for file in (newer / UNIT, config):
        file.write_bytes(there)
    assert_ends(install(newer), 1, f"modified, so not replaced: {UNIT};")
    assert (newer / UNIT).read_bytes() == there
    assert install(newer, "--force").exit_code == 0
    assert "# newer\n" in (newer / UNIT).read_text()
    assert config.read_bytes() == there


@pytest.mark.parametrize("target", ["/dev/null", "nothing-there.service", "mine.service"])
def test_a_symbolic_link_is_reported_and_its_target_never_written(target: str, newer: Path) -> None:
    unit = newer / UNIT
    mine = unit.with_name("mine.service")
    unit.rename(mine)  # unmodified, so that it would be replaced if it were not a link
    before = mine.read_bytes()
    unit.symlink_to(target)
    assert_ends(install(newer), 1, f"{UNIT} (a link to {target});")
    assert unit.is_symlink()
    assert_ends(install(newer, "--force"), 0, f"installed {unit}")
    assert not unit.is_symlink() and "# newer\n" in unit.read_text()
    assert mine.read_bytes() == before
    assert not unit.with_name("nothing-there.service").exists()


def test_a_configuration_that_is_a_symbolic_link_is_kept(newer: Path) -> None:
    config = newer / "etc/pagetier/pagetierd.toml"
    config.unlink()
    config.symlink_to("mounted-later.toml")
    assert install(newer, "--force").exit_code == 0
    assert config.is_symlink() and not config.exists()


@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_leaves_the_old_unit_unchanged(there: bool, newer: Path) -> None:
    unit = newer / UNIT
    older = unit.read_text().replace(str(PROGRAM), "/opt/older/bin/pagetierd") if there else None
    unit.unlink()
    if older is not None:
        unit.write_text(older)
    command = f"ulimit -f 0; exec {sys.executable} -c '{RUN}' unit install --root {newer}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, f"{unit}: File too large" in done.stderr) == (1, True), done.stderr
    assert (unit.read_text() if unit.exists() else None) == older
    assert not [path for path in unit.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["../x", "a/b", "x%i", "ä", "a" * 23, "a b", "pagetierd", "", "-a", "A", "1", "a.b"])
def test_invalid_names_of_tenants_are_rejected(name: str, tmp_path: Path) -> None:
    for command in ("install", "print"):
        assert_ends(CliRunner().invoke(main, ["unit", command, f"--tenant={name}"]), 2, "cannot be a tenant's name: ")
    assert install(tmp_path, "--tenant", "acme-2_b").exit_code == 0


@pytest.mark.parametrize(("name", "whose"), [("pagetierd", "the default daemon"), ("copy", "/etc/pagetier/copy.toml")])
def test_names_of_tenants_whose_file_is_in_use_are_rejected(name: str, whose: str, tmp_path: Path) -> None:
    assert_ends(install(tmp_path, "--tenant", name), 2, whose)
    assert list(tmp_path.iterdir()) == []


def test_the_help_of_the_command_is_complete() -> None:
    assert "keeps an existing configuration." in CliRunner().invoke(main, ["unit", "--help"]).output
