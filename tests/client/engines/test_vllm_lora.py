"""Tests which LoRA adapters two engines share, and when they stop to share them."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eventually import PATIENCE_S, eventually
from pagetier.client.engines.file_digests import FileDigests
from pagetier.client.engines.vllm.lora import LoraAdapters

AFTER_NS = 10**9


def adapter(folder: Path, **more: Any) -> Any:
    """Makes an adapter's files, and returns vLLM's request for it."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(more.pop("weights", b"weights"))
    return SimpleNamespace(lora_name="one", lora_int_id=1, lora_path=str(folder), **more)


def hub_file(root: Path, content: bytes) -> Path:
    """Makes a file as the hub's cache has it, named by its content."""
    file = root / "blobs" / sha256(content).hexdigest()
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    return file


def relink(link: Path, target: Path, since: int) -> None:
    """Makes a link, or leads it elsewhere, at a time after `since`."""
    changed = 0
    while changed <= since:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        changed = link.lstat().st_ctime_ns


def engine(memory: Path, since: int | None = None, dtype: str = "auto", **settings: Any) -> LoraAdapters:
    began = time.time_ns() + AFTER_NS if since is None else since
    return LoraAdapters(FileDigests(memory / "files.json"), began, SimpleNamespace(lora_dtype=dtype, **settings))


def name_of(adapters: LoraAdapters, of: Any) -> list[object]:
    """Returns the name once the files are read."""
    adapters.name_of(of)
    adapters._thread.submit(int).result(PATIENCE_S)
    return adapters.name_of(of)


def test_engines_share_an_adapter_with_the_same_files(tmp_path: Path) -> None:
    one, copy, other = adapter(tmp_path / "one"), adapter(tmp_path / "copy"), adapter(tmp_path / "b", weights=b"others")
    assert name_of(engine(tmp_path), one) == name_of(engine(tmp_path), copy)
    assert name_of(engine(tmp_path), one) != name_of(engine(tmp_path), other)
    assert name_of(engine(tmp_path), one) != name_of(engine(tmp_path, dtype="float32"), one)


@pytest.mark.parametrize(
    "setting",
    [
        {"target_modules": ["o_proj"]},
        {"target_modules": []},
        {"enable_tower_connector_lora": True},
        {"enable_mixed_moe_lora_format": True},
        {"enable_moe_shared_loras": True},
    ],
    ids=str,
)
def test_engines_that_compute_an_adapter_otherwise_do_not_share_it(tmp_path: Path, setting: dict[str, Any]) -> None:
    one = adapter(tmp_path / "one")
    usual: dict[str, Any] = {"target_modules": None, "enable_tower_connector_lora": False}
    assert name_of(engine(tmp_path, **(usual | setting)), one) != name_of(engine(tmp_path), one)
    assert name_of(engine(tmp_path, **usual), one) == name_of(engine(tmp_path), one)


def test_the_order_of_target_modules_has_no_meaning(tmp_path: Path) -> None:
    one, modules = adapter(tmp_path / "one"), ["o_proj", "qkv_proj"]
    names = [name_of(engine(tmp_path, target_modules=given), one) for given in (modules, modules[::-1])]
    assert names[0] == names[1]


def test_a_request_does_not_wait_for_the_files(tmp_path: Path) -> None:
    one, first, second = adapter(tmp_path / "one"), engine(tmp_path), engine(tmp_path)
    before = first.name_of(one)
    assert before != second.name_of(one), "no engine shares an adapter that is not identified yet"
    assert eventually(lambda: first.name_of(one) == second.name_of(one))
    assert first.name_of(one) != before


def test_files_that_are_younger_than_the_engine_are_not_shared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, since = adapter(tmp_path / "one"), time.time_ns() - 60 * 10**9
    assert name_of(engine(tmp_path, since), one) != name_of(engine(tmp_path, since), one)
    assert f"shares no pages of the adapter in {tmp_path / 'one'} with other engines" in caplog.text


@pytest.mark.parametrize("linked", ["a file", "the folder"])
def test_an_adapter_is_not_shared_if_a_link_changed_before_its_first_request(tmp_path: Path, linked: str) -> None:
    """The engine may have loaded the files to which the link led when it was started."""
    one = adapter(tmp_path / "one")
    link, old, new = tmp_path / "link", tmp_path / "one", Path(adapter(tmp_path / "two", weights=b"new").lora_path)
    if linked == "a file":
        link = tmp_path / "one" / "adapter_model.safetensors"
        old, new = (hub_file(tmp_path, content) for content in (b"old", b"new"))
    else:
        one.lora_path = str(link)
    relink(link, old, 0)
    since = time.time_ns()
    assert name_of(engine(tmp_path, since), one) == name_of(engine(tmp_path, since), one)
    relink(link, new, since)
    assert name_of(engine(tmp_path, since), one) != name_of(engine(tmp_path, since), one)


def test_an_adapter_whose_files_change_is_not_shared_any_more(tmp_path: Path) -> None:
    one, adapters = adapter(tmp_path / "one"), engine(tmp_path)
    shared = name_of(adapters, one)
    file = tmp_path / "one" / "adapter_model.safetensors"
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(1, 1))
    assert adapters.name_of(one) != shared
    adapter(tmp_path / "one")
    assert adapters.name_of(one) != shared, "the engine may have loaded what was there in between"


@pytest.mark.parametrize("more", [{"load_inplace": True}, {"lora_path": "organisation/name"}])
def test_adapters_without_files_of_their_own_are_not_shared(tmp_path: Path, more: dict[str, Any]) -> None:
    one = adapter(tmp_path / "one")
    one = SimpleNamespace(**(vars(one) | more))
    assert name_of(engine(tmp_path), one) != name_of(engine(tmp_path), one)
