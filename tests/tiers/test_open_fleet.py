"""Tests that what is wrong with a fleet's settings is one line that says what to do."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from other_users import MALLORY, as_root
from pagetier.tiers.base import TierError, shown_url
from pagetier.tiers.fleet import open_fleet as opening
from pagetier.tiers.fleet.fleet_options import check_options
from pagetier.tiers.fleet.open_fleet import codec_of, open_fleet
from pagetier.tiers.worker_protocol import FleetOptions


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "remote.url has no store that pagetier knows: write s3://"),
        ("ftp://host/x", "no store that pagetier knows"),
        ("/mnt/pages", "no store that pagetier knows"),
        ("s3:///pages", "names no s3 store"),
        ("s3://user:secret@bucket", "contains a password: put credentials into"),
        ("s3://bucket?endpoint=https://user:secret@host:8333", "contains a password: put credentials into"),
        (
            "s3://bucket?endpoints=x",
            "unknown parameter 'endpoints': known are buffers, compress, endpoint, prefix, region, trusted",
        ),
        ("file://host/pages", "has three slashes"),
        ("file:///tmp?x=1", "unknown parameter 'x'"),
        ("mooncake://host:port", "is no URL"),
        ("mooncake://", "names no mooncake store"),
        ("mooncake://10.0.0.1:50051", "set remote.key_file, or trusted=yes"),
        ("python://", "names no python store"),
    ],
)
def test_a_wrong_url_says_what_to_do(url: str, message: str) -> None:
    with pytest.raises(TierError, match=message) as raised:
        check_options(FleetOptions(url=url))
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("prefix", ["", "/", "a//b", "../x", "a/"])
def test_a_wrong_prefix_says_what_to_do(prefix: str) -> None:
    with pytest.raises(TierError, match=r"prefix in remote.url cannot be"):
        check_options(FleetOptions(url="file:///tmp", prefix=prefix))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///does/not/exist", "is not a folder: create it, or mount its file system"),
        ("python://faulty_store:Nothing", "cannot be imported"),
        ("python://no_such_module:Store", "cannot be imported"),
        ("python://faulty_store", "cannot be imported"),
        ("python://faulty_store:FailsToOpen", "cannot be opened: RuntimeError: no such thing$"),
    ],
)
def test_a_store_that_cannot_be_opened_is_one_line(url: str, message: str) -> None:
    with pytest.raises(TierError, match=message) as raised:
        open_fleet(FleetOptions(url=url))
    assert "\n" not in str(raised.value)


def test_a_module_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_store.py").write_text("raise RuntimeError('first line\\nsecond line')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TierError, match=r"failing_store:Store cannot be imported: RuntimeError: first line$"):
        open_fleet(FleetOptions(url="python://failing_store:Store"))


def test_a_store_that_does_not_open_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_OPENING_S", 0.2)
    with pytest.raises(TierError, match=r"no answer within 0\.2 s"):
        open_fleet(FleetOptions(url="python://faulty_store:SlowToOpen", timeout_s=0.1))


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (None, 0, "cannot be read: No such file or directory"),
        (b"short", 0o400, "has 5 bytes instead of 32"),
        (b"k" * 33, 0o400, "has 33 bytes instead of 32"),
        (b"k" * 32, 0o440, "can be read by others: chmod 0400"),
    ],
)
def test_a_wrong_key_file_says_what_to_do(tmp_path: Path, content: bytes | None, mode: int, message: str) -> None:
    path = tmp_path / "fleet.key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(TierError, match=message):
        codec_of(FleetOptions(url="file:///tmp", key_file=str(path)))


def test_a_key_file_that_is_a_fifo_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fleet.key", 0o400)
    with pytest.raises(TierError, match="has 0 bytes instead of 32"):
        codec_of(FleetOptions(url="file:///tmp", key_file=str(tmp_path / "fleet.key")))


@as_root
def test_a_key_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o400)
    os.chown(path, MALLORY, MALLORY)
    with pytest.raises(TierError, match=f"belongs to user {MALLORY}: chown it"):
        codec_of(FleetOptions(url="file:///tmp", key_file=str(path)))


def test_mooncake_is_accepted_with_a_key_or_with_trust() -> None:
    options = FleetOptions(url="mooncake://10.0.0.1:50051?protocol=rdma&hostname=10.0.0.7&replicas=2")
    check_options(msgspec.structs.replace(options, key_file="/etc/pagetier/fleet.key"))
    check_options(msgspec.structs.replace(options, trusted=True))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mooncake://10.0.0.1:50051?protocol=rdma&hostname=10.0.0.7", "mooncake://10.0.0.1:50051"),
        ("s3://user:secret@bucket/kv?endpoint=https://user:secret@host", "s3://bucket/kv"),
        ("python://store:Store/some/path?token=secret#more", "python://store:Store/some/path"),
        ("s3://[no?secret", "s3://[no"),
        ("file:///mnt/pages", "file:///mnt/pages"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown
