"""The page size that pagetier chooses in SGLang's settings, with the variable PAGETIER and by flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.server_args import ServerArgs

import sglang_imports  # noqa: F401  before SGLang
from pagetier.client.engines.sglang.plugin import resolve_settings
from sglang_flags import BY_FLAGS, LINKER_CONFIG, LINKER_FLAGS, STORAGE, FolderOf, Resolve, linker, storage

pytest_plugins = ("sglang_resolver",)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("Llama 3.1 8B", 64),
        ("Qwen2.5 0.5B", 256),
        ("Qwen2.5 7B", 128),
        ("DeepSeek V3", 128),
        ("gemma-3-4b", 64),
        ("gpt-oss-20b", 64),
    ],
)
def test_pages_fill_frames_without_a_setting(resolve: Resolve, folder_of: FolderOf, name: str, tokens: int) -> None:
    flags = ["--model-path", folder_of(name), "--attention-backend", "triton"]
    plain, found = resolve("0", *flags), resolve("1", *flags)
    assert (plain["page"], plain["lines"], plain["error"]) == (1, [], "")
    assert (found["on"], found["page"], found["error"]) == (True, tokens, "")
    (line,) = found["lines"]
    assert line.startswith(f"pagetier set --page-size {tokens}, so that pages fill frames")


@pytest.mark.parametrize(
    ("page", "flags"),
    [
        (1, ("--page-size", "1")),
        (16, ("--page-size", "16")),
        (1, ("--kv-events-config", '{"publisher": "null"}')),
        (1, ("--chunked-prefill-size", "1000")),  # which SGLang rejects beside longer pages
    ],
    ids=str,
)
def test_where_the_page_size_is_sglangs(
    resolve: Resolve, folder_of: FolderOf, page: int, flags: tuple[str, ...]
) -> None:
    model = ["--model-path", folder_of("Qwen2.5 7B"), "--attention-backend", "triton"]
    found = resolve("1", *model, *flags)
    assert (found["on"], found["page"], found["lines"], found["error"]) == (True, page, [], "")


LINE = "pagetier set --page-size 128, so that pages fill frames; --page-size 1 avoids it"


@pytest.mark.parametrize("name", BY_FLAGS)
def test_pages_fill_frames_by_flags(resolve: Resolve, folder_of: FolderOf, name: str) -> None:
    flags = ("--model-path", folder_of("Qwen2.5 7B"), "--attention-backend", "triton", *BY_FLAGS[name])
    found = resolve("0", *flags)
    assert (found["page"], found["lines"], found["error"]) == (128, [LINE], "")
    beside = resolve("1", *flags)
    assert (beside["page"], beside["error"]) == (128, "")
    assert beside["lines"][0] == LINE and beside["lines"][1].startswith("PAGETIER=1 has no effect: --enable-")


def test_pages_fill_frames_with_the_storage_in_a_file(resolve: Resolve, folder_of: FolderOf, tmp_path: Path) -> None:
    model = ("--model-path", folder_of("Qwen2.5 7B"), "--attention-backend", "triton")
    file = tmp_path / "storage.json"
    file.write_text(STORAGE)
    found = resolve("0", *model, *BY_FLAGS["HiCache"][:-1], f"@{file}")
    assert (found["page"], found["lines"], found["error"]) == (128, [LINE], "")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("absent.json", None),
        (".", None),
        ("binary.json", b"\xff\xfe"),
        ("cut.json", STORAGE[:-1].encode()),
        ("list.json", b"[]"),
        ("number.json", storage(prefetch_threshold="many").encode()),
        ("storage.ini", STORAGE.encode()),
    ],
)
def test_a_file_that_sglang_cannot_read_is_left_to_sglang(
    resolve: Resolve, folder_of: FolderOf, tmp_path: Path, name: str, content: bytes | None
) -> None:
    """SGLang reads it in the processes of its schedulers, and says there what is wrong with it."""
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    model = ("--model-path", folder_of("Qwen2.5 7B"), "--attention-backend", "triton")
    found = resolve("0", *model, *BY_FLAGS["HiCache"][:-1], f"@{file}")
    assert (found["page"], found["lines"], found["error"]) == (1, [], "")


LORA = ("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "q_proj")


@pytest.mark.parametrize(
    "flags",
    [
        (*BY_FLAGS["HiCache"], *LORA),
        (*BY_FLAGS["HiCache"], "--hicache-mem-layout", "page_first_kv_split"),
        (*BY_FLAGS["HiCache"][:-1], storage(interface_v1=0)),
        (*BY_FLAGS["HiCache"][:-1], storage(timeout="soon")),
        (*BY_FLAGS["HiCache"][:-1], storage(load="sometimes")),
        (*LINKER_FLAGS, LINKER_CONFIG, json.dumps(linker(sokcet="x"))),
        (*LINKER_FLAGS, LINKER_CONFIG, json.dumps(linker(remote_timeout=0))),
    ],
    ids=["LoRA", "layout", "interface", "timeout", "load", "unknown setting", "wrong setting"],
)
def test_engines_that_pagetier_refuses_keep_their_page_size(
    resolve: Resolve, folder_of: FolderOf, flags: tuple[str, ...]
) -> None:
    found = resolve("0", "--model-path", folder_of("Qwen2.5 7B"), "--attention-backend", "triton", *flags)
    assert (found["page"], found["lines"], found["error"]) == (1, [], "")


def test_the_linker_with_adapters_has_pages_that_fill_frames(resolve: Resolve, folder_of: FolderOf) -> None:
    flags = ("--attention-backend", "triton", *BY_FLAGS["linker"], *LORA)
    found = resolve("0", "--model-path", folder_of("Qwen2.5 7B"), *flags)
    assert (found["page"], found["lines"], found["error"]) == (128, [LINE], "")


def test_the_pool_that_a_user_has_set_has_room_for_pages(resolve: Resolve, folder_of: FolderOf) -> None:
    page, enough, less = 128, 16 * 128, 16 * 128 - 1
    model = ("--model-path", folder_of("Qwen2.5 7B"), "--attention-backend", "triton", "--max-total-tokens")
    found = resolve("1", *model, str(enough))
    assert (found["on"], found["page"], found["error"]) == (True, page, "")
    assert found["lines"] == [f"pagetier set --page-size {page}, so that pages fill frames; --page-size 1 avoids it"]
    for most in (less, page - 1):
        found = resolve("1", *model, str(most))
        assert (found["on"], found["page"], found["error"]) == (True, 1, "")
        line = f"--max-total-tokens {most} is too small for pages of {page} tokens"
        assert found["lines"] == [f"pagetier leaves --page-size to SGLang: {line}"]


@pytest.mark.parametrize("name", BY_FLAGS)
@pytest.mark.parametrize(
    ("page", "flags"),
    [
        (1, ("--page-size", "1")),
        (32, ("--page-size", "32")),
        (1, ("--speculative-algorithm", "NGRAM")),
        (1, ("--chunked-prefill-size", "1000")),
    ],
    ids=str,
)
def test_where_the_page_size_is_sglangs_by_flags(
    resolve: Resolve, folder_of: FolderOf, page: int, flags: tuple[str, ...], name: str
) -> None:
    model = ("--model-path", folder_of("Qwen2.5 7B"), "--attention-backend", "triton")
    found = resolve("0", *model, *flags, *BY_FLAGS[name])
    assert (found["page"], found["lines"], found["error"]) == (page, [], "")


@pytest.mark.parametrize(
    "flags",
    [
        BY_FLAGS["linker"][1:],
        BY_FLAGS["HiCache"][1:],
        ("--enable-hierarchical-cache",),
        ("--enable-hierarchical-cache", "--hicache-storage-backend", "file"),
        (*BY_FLAGS["HiCache"][:-1], STORAGE.replace("PagetierStorage", "OtherStorage")),
        (*LINKER_FLAGS, LINKER_CONFIG, json.dumps(linker()).replace("PagetierLinker", "OtherLinker")),
    ],
    ids=["linker that is off", "HiCache that is off", "no storage", "file", "another storage", "another linker"],
)
def test_engines_without_pagetier_keep_their_page_size(
    resolve: Resolve, folder_of: FolderOf, flags: tuple[str, ...]
) -> None:
    model = ("--model-path", folder_of("Qwen2.5 7B"), "--attention-backend", "triton")
    found = resolve("0", *model, *flags)
    assert (found["page"], found["lines"], found["error"]) == (1, [], "")


def test_recurrent_states_without_a_buffer_keep_one_token(resolve: Resolve, folder_of: FolderOf) -> None:
    flags = ["--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule"]
    found = resolve("1", "--model-path", folder_of("Qwen3-Next"), "--attention-backend", "triton", *flags)
    assert (found["on"], found["page"], found["error"]) == (True, 1, "")


def test_what_sglang_rejects_with_any_page_size_starts_without_the_linker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def resolve(args: Any) -> None:
        tried.append((args.enable_unified_cache_external_linker, args.page_size))
        if args.enable_unified_cache_external_linker:
            args._resolved_overrides = [("pagetier", {"page_size": 64})] if args.page_size is None else []
            raise ValueError("no linker")

    monkeypatch.setenv("PAGETIER", "1")
    args = ServerArgs(model_path="model")
    resolve_settings(resolve, args)
    assert tried == [(True, None), (True, 1), (False, None)]
    assert not hasattr(args, "_resolved_overrides") and args.unified_cache_external_linker_config is None
    assert [one.getMessage() for one in caplog.records] == ["PAGETIER=1 has no effect: no linker"]


def test_what_sglang_rejects_by_flags_is_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def resolve(args: Any) -> None:
        tried.append(args.page_size)
        args._resolved_overrides = [("pagetier", {"page_size": 64})] if args.page_size is None else []
        raise ValueError(f"no engine with {args.page_size}")

    monkeypatch.setenv("PAGETIER", "0")
    args = ServerArgs(model_path="model")
    with pytest.raises(ValueError, match="no engine with 1"):
        resolve_settings(resolve, args)
    assert tried == [None, 1] and args.page_size is None
