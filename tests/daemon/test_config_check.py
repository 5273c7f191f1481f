"""Tests what `pagetierd --check` says of a valid configuration on this host."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagetier.daemon.config.loader import load
from pagetier.daemon.config_check import check_config
from pagetier.daemon.host.host import Host


def warnings(flags: dict[str, str]) -> str:
    """Returns the warnings about a configuration that these flags make."""
    lines = check_config(load(None, {}, {"arena.size": "8MiB", **flags}), Host())
    return "\n".join(line for line in lines if line.startswith("warning"))


def test_a_configuration_that_fits_has_no_warning(tmp_path: Path) -> None:
    given = {"disk.path": str(tmp_path / "new" / "disk"), "disk.size": "64MiB", "socket": str(tmp_path / "socket")}
    assert warnings(given) == ""


@pytest.mark.parametrize("folder", ["/proc/x", "/sys/x", "FILE/x"])
@pytest.mark.parametrize("setting", ["disk.path", "socket", "metrics.listen", "http.listen"])
def test_a_folder_that_cannot_be_created_is_named_with_its_setting(setting: str, folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = folder.replace("FILE", str(tmp_path / "file"))
    given = {setting: path if setting == "disk.path" else f"{path}/socket"}
    more = {"disk.size": "64MiB"} if setting == "disk.path" else {}
    assert f"set another {setting}" in warnings({"socket": str(tmp_path / "socket")} | given | more)


@pytest.mark.parametrize("listen", ["", "127.0.0.1:9465"])
def test_a_missing_token_file_is_named_with_its_setting(listen: str, tmp_path: Path) -> None:
    found = warnings({"http.token_file": str(tmp_path / "none"), "http.listen": listen})
    assert "http.token_file" in found and str(tmp_path / "none") in found


def test_an_arena_larger_than_the_host_is_told_what_fits() -> None:
    assert "arena.size = " in warnings({"arena.size": "900TiB", "arena.frame_size": "4MiB"})


def test_an_index_smaller_than_the_arena_is_a_warning() -> None:
    assert "index.entries = 5 " in warnings({"index.entries": "5"})
