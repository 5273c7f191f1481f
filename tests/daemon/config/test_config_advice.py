"""Tests that a wrong configuration file or environment names what to write instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagetier.daemon.check_config import check_config
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.load import ConfigError, load
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.config.schema import ArenaOptions, Config
from pagetier.daemon.host.host import Host
from pagetier.tiers.fleet import check_host


def why(tmp_path: Path, text: str) -> str:
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(file, {}, {})
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("[arena]\nsize = 64GB\n", 'write size = "64GB", in quotes'),
        ('[arena]\nsize = "1GiB"\nsize = "2GiB"\n', '"size = "2GiB"" sets a key again'),
        ("# a line\u2028separator\n[arena]\nsize = 64GB\n", 'write size = "64GB", in quotes'),
        ('arena_size = "1GiB"\n', "write size in the table [arena]"),
        ('[ARENA]\nsize = "1GiB"\n', 'did you mean "arena"?'),
        ('[evict]\nlow = "5 percent"\n', '"5 percent" is not a number'),
        ('[evict]\nlow = "500%"\n', "is not a percentage"),
        ('[evict]\nlow = "5%"\n', "set evict.high to as much or more"),
        ('size = "1GiB"\n', "it stands before any table: arena.size or disk.size may be meant"),
        ('[arena]\nsize = "1GiB"\n[arena]\nthreads = 1\n', '"[arena]" begins a table again'),
    ],
)
def test_a_mistake_names_the_fix(tmp_path: Path, text: str, advice: str) -> None:
    assert advice in why(tmp_path, text)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b'\xef\xbb\xbf[arena]\nsize = "3MiB"\n')
    assert load(file, {}, {}).arena.size == 3 << 20


def test_a_check_warns_about_a_disk_that_this_host_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arena = ArenaOptions(size=64 << 20, frame_size=1 << 20)
    wrong = Config(arena=arena, disk=DiskOptions(path=(tmp_path / "file/disk",), size=(1 << 30,)))
    warning = f"warning: on this host {tmp_path}/file is not a folder: set another disk.path"
    assert warning in check_config(wrong, Host())
    large = Config(arena=arena, disk=DiskOptions(path=(tmp_path / "disk",), size=(1 << 40,)))
    found = [line for line in check_config(large, Host()) if line.startswith("warning")]
    assert len(found) == 1 and "disk.size = 1TiB is more than the file system" in found[0]


def test_a_check_names_what_the_fleet_lacks_on_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(url: str, **more: object) -> str:
        remote = RemoteOptions(url=url, **more)  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as error:
            list(check_config(Config(remote=remote), Host()))
        return str(error.value)

    key = tmp_path / "fleet.key"
    key.write_bytes(b"k" * 31)
    (tmp_path / "store.py").write_text("raise SystemExit('imported')")
    assert wrong(f"file://{tmp_path}/pages") == (
        f"fleet: {tmp_path}/pages is not a folder: create it, or mount its file system"
    )
    assert "has 31 bytes instead of 32" in wrong(f"file://{tmp_path}", key_file=key)
    assert "cannot be read" in wrong(f"file://{tmp_path}", key_file=tmp_path / "none")
    assert "there is no module store: install it, or set PYTHONPATH" in wrong("python://store:Store")
    assert "names no class: write python://MODULE:CLASS" in wrong("python://store")
    service = RemoteOptions(url="python://store:Store", worker="service")
    assert "there is no module store" in list(check_config(Config(remote=service), Host()))[3]
    monkeypatch.syspath_prepend(tmp_path)
    assert "fleet: python://store:Store" in list(
        check_config(Config(remote=RemoteOptions(url="python://store:Store")), Host())
    )


@pytest.mark.parametrize(
    ("url", "library", "extra"),
    [("s3://bucket/x", "obstore", "s3"), ("mooncake://10.0.0.1:50051", "mooncake", "mooncake")],
)
def test_a_check_names_the_library_that_a_store_needs(
    monkeypatch: pytest.MonkeyPatch, url: str, library: str, extra: str
) -> None:
    monkeypatch.setattr(check_host, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as error:
        list(check_config(Config(remote=RemoteOptions(url=url, trusted="yes")), Host()))
    scheme = url.partition(":")[0]
    assert str(error.value) == f"fleet: {scheme}:// needs {library}: pip install 'pagetier[{extra}]'"


def test_variables_of_kubernetes_name_their_origin() -> None:
    with pytest.raises(ConfigError, match="enableServiceLinks: false"):
        load(None, {"PAGETIER_SERVICE_HOST": "10.0.0.1"}, {})
    with pytest.raises(ConfigError, match="enableServiceLinks: false"):
        load(None, {"PAGETIER_PORT_9464_TCP_ADDR": "10.0.0.1"}, {})


def test_shares_and_the_arena_can_be_percentages() -> None:
    config = load(None, {}, {"evict_low": "1%", "evict_high": "5%", "arena_size": "25%"})
    assert (config.evict.low, config.evict.high) == (0.01, 0.05)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert config.arena.size == memory // 4


def test_a_check_says_that_the_file_is_right_and_what_does_not_fit_here() -> None:
    disk = DiskOptions(path=(Path("/x"),), size=(200 << 20,))
    config = Config(name="pagetier-test-check", arena=ArenaOptions(size=900 << 40, frame_size=1 << 30), disk=disk)
    first, memory, room, warning = check_config(config, Host())
    assert first == "the configuration is valid"
    assert memory == "memory: 900.0 TiB in 921,600 frames of 1GiB"
    assert room == "disk: room for 0 B in 0 frames under a cap of 200.0 MiB"
    assert warning.startswith("warning: on this host an arena of 900.0 TiB does not fit")
