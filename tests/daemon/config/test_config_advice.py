"""`pagetierd --check` names the settings that this host cannot have, and what to install or create."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.loader import ConfigError
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.config.schema import ArenaOptions, Config
from pagetier.daemon.config_check import check_config
from pagetier.daemon.host.host import Host
from pagetier.tiers.fleet import check_host


def warnings(config: Config) -> list[str]:
    return [line for line in check_config(config, Host()) if line.startswith("warning")]


def lacking(url: str, **more: object) -> str:
    with pytest.raises(ConfigError) as error:
        list(check_config(Config(remote=RemoteOptions(url=url, **more)), Host()))  # type: ignore[arg-type]
    return str(error.value)


def test_a_check_warns_about_a_disk_that_this_host_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arena = ArenaOptions(size=64 << 20, frame_size=1 << 20)
    for path, size, words in (
        (tmp_path / "file/disk", 1 << 30, "disk.path"),
        (tmp_path / "disk", 1 << 40, "disk.size = 1TiB"),
    ):
        (warning,) = warnings(Config(arena=arena, disk=DiskOptions(path=(path,), size=(size,))))
        assert words in warning


def test_a_check_names_what_the_fleet_lacks_on_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, store = tmp_path / "fleet.key", "python://store:Store"
    key.write_bytes(b"k" * 31)
    (tmp_path / "store.py").write_text("raise SystemExit('imported')")
    assert f"{tmp_path}/pages" in lacking(f"file://{tmp_path}/pages")
    assert "31 bytes instead of 32" in lacking(f"file://{tmp_path}", key_file=key)
    assert str(tmp_path / "none") in lacking(f"file://{tmp_path}", key_file=tmp_path / "none")
    assert "module store" in lacking(store) and "MODULE:CLASS" in lacking("python://store")
    of_service = Config(remote=RemoteOptions(url=store, worker="service"))
    assert any("module store" in line for line in check_config(of_service, Host()))
    monkeypatch.syspath_prepend(tmp_path)
    assert f"fleet: {store}" in list(check_config(Config(remote=RemoteOptions(url=store)), Host()))


@pytest.mark.parametrize(("url", "extra"), [("s3://bucket/x", "s3"), ("mooncake://10.0.0.1:50051", "mooncake")])
def test_a_check_names_the_library_that_a_store_needs(monkeypatch: pytest.MonkeyPatch, url: str, extra: str) -> None:
    monkeypatch.setattr(check_host, "find_spec", lambda name: None)
    assert f"pip install 'pagetier[{extra}]'" in lacking(f"{url}?trusted=yes")
