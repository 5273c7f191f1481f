"""Tests which engines have the same weights: by commit, by the names or the contents of files, or by the setting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eventually import eventually
from pagetier.client.engines import file_digests
from pagetier.client.engines.file_digests import FileDigests, user_memory
from pagetier.client.engines.vllm.draft_model import weights_sources
from pagetier.client.engines.weights import UnidentifiedError, bytes_to_read, identify, started_ns

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SETTLED_NS = 2_050_000_000
OTHER_COMMIT = COMMIT[::-1]
CONTENT = {
    "config.json": b"{}",
    "tokenizer.json": b"tokens",
    "modeling.py": b"code",
    "a.safetensors": b"weights a",
    "b.safetensors": b"weights b",
    "README.md": b"text",
}


class ResolvedRevision(str):
    """A text with an attribute, like vLLM's resolved revision."""

    resolved = COMMIT


def config_of(model: Path | str, **settings: Any) -> Any:
    """Returns the parts of vLLM's configuration that say where the weights are from."""
    given = {"revision": None, "model_weights": "", "load_format": "auto", "download_dir": None, "commit": None}
    given |= settings
    hf = SimpleNamespace(_commit_hash=given["commit"])
    loads = {"load_format": given["load_format"], "download_dir": given["download_dir"]}
    of_model = {name: given[name] for name in ("revision", "model_weights")}
    rest = {name: value for name, value in settings.items() if name == "hf_config_path"}
    return SimpleNamespace(
        model_config=SimpleNamespace(model=str(model), hf_config=hf, **of_model, **rest),
        load_config=SimpleNamespace(**loads),
    )


def identity_of(model: Path | str, memory: Path, declared: str = "", **settings: Any) -> str:
    return identify(weights_sources(config_of(model, **settings), declared, time.time_ns()), FileDigests(memory))


def plain(folder: Path, content: dict[str, bytes] = CONTENT) -> Path:
    """Makes a folder of files, changed long ago as far as the times of their content say."""
    for name, data in content.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        os.utime(file, ns=(1, 1))
    return folder


def cached(cache: Path, commit: str = COMMIT, content: dict[str, bytes] = CONTENT) -> Path:
    """Makes a folder as the hub's cache has it: links to files that are named by their content."""
    root = cache / "models--org--name"
    snapshot = root / "snapshots" / commit
    for path in (root / "blobs", snapshot):
        path.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        digest = sha256(data).hexdigest()
        blob = root / "blobs" / (digest if name.endswith(".safetensors") else digest[:40])
        if not blob.exists():
            blob.write_bytes(data)
        (snapshot / name).symlink_to(Path("../..") / "blobs" / blob.name)
    return snapshot


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "files.json"


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that advances the clock until digests of files that were just written are remembered."""
    later = SimpleNamespace(time_ns=lambda: time.time_ns() + SETTLED_NS)

    def written() -> int:
        (tmp_path / "now").touch()
        return (tmp_path / "now").stat().st_mtime_ns

    def advance() -> None:
        before = written()
        assert eventually(lambda: written() > before), "the times of files that are changed from now on differ"
        monkeypatch.setattr(file_digests, "time", later)

    return advance


# --- Contents


def test_copies_have_the_same_identity_wherever_they_are(tmp_path: Path, memory: Path) -> None:
    one, other = plain(tmp_path / "one"), plain(tmp_path / "other")
    for file in other.iterdir():
        os.utime(file, ns=(5, 5))
    assert identity_of(one, memory) == identity_of(other, memory) == identity_of(other, tmp_path / "new.json")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "modeling.py", "b.safetensors"])
def test_another_byte_of_a_file_is_another_identity(name: str, tmp_path: Path, memory: Path) -> None:
    one = plain(tmp_path / "one")
    other = plain(tmp_path / "other", CONTENT | {name: CONTENT[name][:-1] + b"?"})
    assert identity_of(one, memory) != identity_of(other, memory)


def test_every_part_of_a_file_is_read(tmp_path: Path, memory: Path) -> None:
    """Samples would miss some of the changed parts."""
    size, seen = 1 << 20, set()
    for at in range(0, size, size // 64):
        content = bytearray(size)
        content[at + 77] = 1
        folder = plain(tmp_path / str(at), {"model.safetensors": bytes(content)})
        seen.add(identity_of(folder, memory))
    assert len(seen) == 64


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a.safetensors").rename(folder / "c.safetensors"),
        lambda folder: (folder / "b.safetensors").unlink(),
        lambda folder: plain(folder, {"c.safetensors": b"more"}),
        lambda folder: plain(folder, {"vision/a.safetensors": b"more"}),
    ],
    ids=["renamed", "fewer", "more", "subfolder"],
)
def test_the_names_and_the_number_of_files_count(
    change: Callable[[Path], object], tmp_path: Path, memory: Path
) -> None:
    one, other = plain(tmp_path / "one"), plain(tmp_path / "other")
    change(other)
    assert identity_of(one, memory) != identity_of(other, memory)


def test_notes_and_hidden_files_do_not_count(tmp_path: Path, memory: Path) -> None:
    one = plain(tmp_path / "one")
    other = plain(tmp_path / "other", CONTENT | {"README.md": b"other", ".git/config.json": b"x"})
    assert identity_of(one, memory) == identity_of(other, memory)


def test_one_file_of_weights_is_identified_with_its_vision_model(tmp_path: Path, memory: Path) -> None:
    folders = [
        plain(tmp_path / "one", {"m.gguf": b"a", "other.gguf": b"x"}),
        plain(tmp_path / "other", {"m.gguf": b"a"}),
        plain(tmp_path / "vision", {"m.gguf": b"a", "m-mmproj.gguf": b"b"}),
    ]
    one, other, vision = (identity_of(folder / "m.gguf", memory) for folder in folders)
    assert one == other != vision


# --- Changes in place


def test_weights_that_are_changed_in_place_get_another_identity(
    tmp_path: Path, memory: Path, settled: Callable[[], None]
) -> None:
    folder = plain(tmp_path / "one")
    file = folder / "a.safetensors"
    settled()
    before, inode = identity_of(folder, memory), file.stat().st_ino
    with file.open("r+b") as content:
        content.write(b"W")
    assert file.stat().st_ino == inode and file.stat().st_size == len(CONTENT[file.name])
    assert identity_of(folder, memory) != before
    os.utime(file, ns=(1, 1))  # the time of the content can be set back, that of the change cannot
    assert identity_of(folder, memory) != before
    file.write_bytes(CONTENT[file.name])
    assert identity_of(folder, memory) == before


def test_weights_that_are_changed_after_the_start_are_not_identified(tmp_path: Path, memory: Path) -> None:
    """The engine may have loaded what was there before."""
    sources = weights_sources(config_of(plain(tmp_path / "one")), "", time.time_ns() - 10**9)
    with pytest.raises(UnidentifiedError, match="was changed after this engine was started"):
        identify(sources, FileDigests(memory))


@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o666), lambda path: os.chown(path, 12345, -1)])
def test_a_memory_that_another_user_could_have_written_is_not_believed(
    spoil: Callable[[Path], object], tmp_path: Path, memory: Path, settled: Callable[[], None]
) -> None:
    folder = plain(tmp_path / "one")
    settled()
    sources = weights_sources(config_of(folder), "", time.time_ns())
    before = identify(sources, FileDigests(memory))
    assert bytes_to_read(sources, FileDigests(memory)) == 0
    memory.write_text(memory.read_text().replace(sha256(CONTENT["a.safetensors"]).hexdigest(), "0" * 64))
    try:
        spoil(memory)
    except OSError:  # EINVAL in a user namespace
        pytest.skip("only root can give a file away")
    assert bytes_to_read(sources, FileDigests(memory)) > 0
    assert identify(sources, FileDigests(memory)) == before


def test_the_start_of_this_process_is_in_the_past() -> None:
    assert 0 < time.time_ns() - started_ns() < 10**9 * 3600


# --- The hub


def test_a_commit_identifies_weights_of_the_hub_and_of_its_cache(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "nothing"))
    by_name = [
        identity_of("org/name", memory, revision=COMMIT),
        identity_of("org/name", memory, commit=COMMIT),
        identity_of("org/name", memory, revision=ResolvedRevision("main")),
        identity_of("org/name", memory, revision=COMMIT, download_dir=str(cached(tmp_path / "hub").parents[2])),
        identity_of(cached(tmp_path / "another hub"), memory),
    ]
    assert len(set(by_name)) == 1
    assert identity_of("org/name", memory, revision=OTHER_COMMIT) != by_name[0]
    assert identity_of("org/other", memory, revision=COMMIT) != by_name[0]


def test_files_of_the_hubs_cache_are_not_read(tmp_path: Path, memory: Path) -> None:
    snapshot = cached(tmp_path)
    assert bytes_to_read(weights_sources(config_of(snapshot), "", 0), FileDigests(memory)) == 0


def test_links_into_the_hubs_cache_are_identified_by_its_names(tmp_path: Path, memory: Path) -> None:
    snapshot, copy = cached(tmp_path), plain(tmp_path / "copy")
    links = tmp_path / "links"
    links.mkdir()
    for file in snapshot.iterdir():
        (links / file.name).symlink_to(file.resolve())
    small = sum(len(data) for name, data in CONTENT.items() if name.endswith((".json", ".py")))
    assert bytes_to_read(weights_sources(config_of(links), "", 0), FileDigests(memory)) == small
    assert identity_of(links, memory) == identity_of(copy, memory)


def test_a_changed_file_of_the_hubs_cache_is_noticed(tmp_path: Path, memory: Path, settled: Callable[[], None]) -> None:
    snapshot = cached(tmp_path)
    settled()
    before = identity_of(snapshot, memory)
    (snapshot / "a.safetensors").resolve().write_bytes(b"tampered!")
    assert identity_of(snapshot, memory) != before


def test_a_file_that_replaces_a_link_into_the_hubs_cache_is_noticed(tmp_path: Path, memory: Path) -> None:
    snapshot, before = cached(tmp_path), identity_of(cached(tmp_path / "again"), memory)
    (snapshot / "a.safetensors").unlink()
    (snapshot / "a.safetensors").write_bytes(b"own weights")
    assert identity_of(snapshot, memory) != before


# --- No identity, and the setting


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"revision": "main"},
        {"commit": COMMIT, "hf_config_path": "org/other"},
        {"revision": COMMIT, "load_format": "tensorizer"},
        {"revision": COMMIT, "model_weights": "s3://bucket/model"},
    ],
    ids=lambda given: " ".join(given) or "nothing",
)
def test_weights_from_elsewhere_are_not_identified_unless_the_setting_does(
    settings: dict[str, str], memory: Path
) -> None:
    with pytest.raises(UnidentifiedError):
        identity_of("org/name", memory, **settings)
    declared = identity_of("org/name", memory, "mine", **settings)
    assert declared == identity_of("another/name", memory, "mine") != identity_of("org/name", memory, "yours")


def test_a_folder_without_weights_is_not_identified(tmp_path: Path, memory: Path) -> None:
    with pytest.raises(UnidentifiedError, match="no files of weights"):
        identity_of(plain(tmp_path / "empty", {"config.json": b"{}"}), memory)


# --- The memory


def test_files_are_read_once(tmp_path: Path, memory: Path, settled: Callable[[], None]) -> None:
    folder, digests = plain(tmp_path / "one"), FileDigests(memory)
    settled()
    sources = weights_sources(config_of(folder), "", time.time_ns())
    assert bytes_to_read(sources, digests) == sum(len(data) for name, data in CONTENT.items() if name != "README.md")
    first = identify(sources, digests)
    assert bytes_to_read(sources, FileDigests(memory)) == 0
    assert identify(sources, FileDigests(memory)) == first
    (folder / "a.safetensors").chmod(0o600)
    assert bytes_to_read(sources, digests) == len(CONTENT["a.safetensors"])


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path, memory: Path) -> None:
    """It may change again without another time."""
    folder = plain(tmp_path / "one")
    identity_of(folder, memory)
    assert bytes_to_read(weights_sources(config_of(folder), "", 0), FileDigests(memory)) > 0


@pytest.mark.parametrize("content", [b"", b"{", b'{"1:2": "x"}', b"[]", b"\xff"])
def test_a_damaged_memory_is_ignored_and_replaced(
    content: bytes, tmp_path: Path, memory: Path, settled: Callable[[], None]
) -> None:
    folder = plain(tmp_path / "one")
    settled()
    expected = identity_of(folder, tmp_path / "fresh.json")
    memory.parent.mkdir()
    memory.write_bytes(content)
    assert identity_of(folder, memory) == expected
    assert bytes_to_read(weights_sources(config_of(folder), "", 0), FileDigests(memory)) == 0


def test_without_a_memory_files_are_read_each_time(tmp_path: Path) -> None:
    folder = plain(tmp_path / "one")
    (tmp_path / "file").write_bytes(b"")
    assert identity_of(folder, tmp_path / "file" / "files.json") == identity_of(folder, tmp_path / "files.json")


def test_the_memory_is_in_the_users_cache_folder() -> None:
    assert user_memory({"XDG_CACHE_HOME": "/c"}) == Path("/c/pagetier/files.json")
    fallback = Path.home() / ".cache/pagetier/files.json"
    assert user_memory({}) == user_memory({"XDG_CACHE_HOME": "relative"}) == fallback


def test_a_user_without_a_home_has_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    folder = plain(tmp_path / "one")
    assert identity_of(folder, user_memory({})) == identity_of(folder, tmp_path / "files.json")
    with pytest.raises(UnidentifiedError):
        identity_of("org/name", user_memory({}))


def no_entry(user: int) -> None:
    raise KeyError(user)


def test_a_draft_model_is_part_of_the_identity(tmp_path: Path) -> None:
    memory, model = tmp_path / "files.json", plain(tmp_path / "model")

    def identity(*drafts: Path) -> str:
        config = config_of(model)
        for draft in drafts:
            of_draft = SimpleNamespace(tensor_parallel_size=1)
            config.parallel_config = of_draft
            config.speculative_config = SimpleNamespace(
                method="eagle", draft_model_config=config_of(draft).model_config, draft_parallel_config=of_draft
            )
        return identify(weights_sources(config, "", time.time_ns()), FileDigests(memory))

    draft, other = plain(tmp_path / "draft"), plain(tmp_path / "other", CONTENT | {"a.safetensors": b"weights c"})
    assert len({identity(), identity(draft), identity(other)}) == 3
    assert identity(plain(tmp_path / "copy")) == identity(draft)
    assert identity() == identity_of(model, memory), "the identity of engines without a draft model is the same"


def test_people_see_the_name_of_the_hub(tmp_path: Path) -> None:
    assert weights_sources(config_of("org/name"), "", 0)[0].title == "org/name"
    assert weights_sources(config_of(cached(tmp_path)), "", 0)[0].title == "org/name"
    assert weights_sources(config_of(tmp_path), "", 0)[0].title == str(tmp_path)
