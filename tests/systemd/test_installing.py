"""`pagetier unit install` over what an earlier one wrote, and for tenants of any name."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pagetier.daemon.cli import main
from pagetier.daemon.cli import unit as unit_command
from pagetier.daemon.cli.sealed import is_as_sealed, sealed

UNIT = "etc/systemd/system/pagetierd.service"


def install(root: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["unit", "install", "--root", str(root), *words])


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with this version's files; the next installation is of a version with another unit."""
    root, package = tmp_path / "root", tmp_path / "package"
    assert install(root).exit_code == 0
    package.mkdir()
    for file in unit_command._FILES.iterdir():
        if file.is_file():
            (package / file.name).write_bytes(file.read_bytes())
    with (package / "pagetierd.service").open("a") as unit:
        unit.write("# newer\n")
    monkeypatch.setattr(unit_command, "_FILES", package)
    return root


def test_a_newer_unit_takes_the_place_of_one_that_nobody_changed(newer: Path) -> None:
    told = install(newer)
    assert (told.exit_code, f"installed {newer / UNIT}" in told.output) == (0, True), told.output
    assert "# newer\n" in (newer / UNIT).read_text()
    assert "installed" not in install(newer).output


def test_one_that_was_changed_stays(newer: Path) -> None:
    mine = (newer / UNIT).read_text().replace("User=pagetier", "User=me")
    (newer / UNIT).write_text(mine)
    assert install(newer).exit_code == 1
    assert (newer / UNIT).read_text() == mine
    assert install(newer, "--force").exit_code == 0
    assert "# newer\n" in (newer / UNIT).read_text()


def test_any_change_breaks_the_seal() -> None:
    text = sealed("a\nb\n")
    assert is_as_sealed(text)
    for other in ("a\nb\n", text.replace("a", "c", 1), text + "c\n", text[:-3], "", f"x{text}"):
        assert not is_as_sealed(other)


@pytest.mark.parametrize("name", ["../x", "a/b", "x%i", "ä", "a" * 23, "a b", "pagetierd", "", "-a", "A", "1", "a.b"])
def test_names_that_no_tenant_may_have(name: str, tmp_path: Path) -> None:
    for command in ("install", "print"):
        told = CliRunner().invoke(main, ["unit", command, f"--tenant={name}"])
        assert (told.exit_code, "can not be a tenant's name: " in told.output) == (2, True), told.output
    assert install(tmp_path, "--tenant", "acme-2_b").exit_code == 0


@pytest.mark.parametrize(("name", "whose"), [("pagetierd", "the plain daemon"), ("copy", "/etc/pagetier/copy.toml")])
def test_names_whose_file_is_somebody_elses(name: str, whose: str, tmp_path: Path) -> None:
    told = install(tmp_path, "--tenant", name)
    assert (told.exit_code, whose in told.output) == (2, True), told.output
    assert list(tmp_path.iterdir()) == []


def test_what_installing_does_is_told_to_its_end() -> None:
    assert "keeps a configuration." in CliRunner().invoke(main, ["unit", "--help"]).output
