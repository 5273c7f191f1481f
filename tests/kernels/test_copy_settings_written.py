"""The settings of copies: files that are written are read back, and keep what people wrote."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetier.kernels.config.copy_settings import WAYS, CopySettings, Thresholds
from pagetier.kernels.config.file import (
    SettingsError,
    load_settings,
    read_settings,
    write_settings,
)

KIB, MIB = 1 << 10, 1 << 20

KIB, MIB = 1 << 10, 1 << 20


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- writing --------------------------------------------------------------------------------------------------

thresholds = st.tuples(*[st.integers(0, 2**40)] * 2).map(lambda pair: Thresholds(min(pair), max(pair)))
any_settings = st.builds(
    CopySettings,
    path=st.sampled_from(WAYS),
    programs=st.integers(1, 65535),
    store_bandwidth=st.integers(0, 2**63 - 1),
    load_bandwidth=st.integers(0, 2**63 - 1),
    queue_limit=st.floats(1e-300, 86400),
    chunk=st.integers(1, 2**63 - 1),
    depth=st.integers(1, 64),
    reserve_timeout=st.floats(1e-300, 86400),
    staging=st.integers(64 * KIB, 2**63 - 1),
    stores=thresholds,
    loads=thresholds,
)


@given(any_settings, any_settings, st.text(max_size=20))
def test_written_settings_are_read_back_from_any_old_file(
    before: CopySettings, settings: CopySettings, measured: str
) -> None:
    from pagetier.kernels.config.file import _merged

    first = _merged("", before, "first")
    assert read_settings(first, "") == before
    assert read_settings(_merged(first, settings, measured), "") == settings
    assert read_settings(_merged("queue_limit = [\n", settings, measured), "") == settings


def test_lines_written_by_people_are_kept(tmp_path: Path) -> None:
    path = put(
        tmp_path / "copy.toml",
        '# ours\nprograms = 0x08  # half\nchunk = "1MiB"\n\n[loads]\nkernel_below = 1\n[ stores ]\n# old\n',
    )
    settings = msgspec.structs.replace(load_settings(path), stores=Thresholds(4 * KIB, 3 * MIB))
    write_settings(path, settings, "measured\nby me")
    assert path.read_text() == (
        '# ours\nprograms = 0x08  # half\nchunk = "1MiB"\n\n'
        '[stores]\n# measured by me\nkernel_below = "4KiB"\nstaged_below = "3MiB"\n\n'
        '[loads]\n# measured by me\nkernel_below = "1"\nstaged_below = "32KiB"\n'
    )
    write_settings(path, settings, "again")
    assert path.read_text().count("[stores]") == 1


def test_a_contradicting_file_is_rewritten_without_defaults(tmp_path: Path) -> None:
    path = put(tmp_path / "copy.toml", "# gone\nprograms = 8\nloads = {kernel_below = 1}\n")
    write_settings(path, CopySettings(depth=3), "by me")
    assert path.read_text().startswith("depth = 3\n\n[stores]\n# by me\n")
    assert load_settings(path) == CopySettings(depth=3)


def test_a_new_file_is_readable_by_all_and_an_old_one_keeps_mode_and_link(tmp_path: Path) -> None:
    link, path = tmp_path / "link.toml", tmp_path / "deep/er/copy.toml"
    write_settings(path, CopySettings(), "by me")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o600)
    link.symlink_to(path)
    write_settings(link, CopySettings(depth=5), "by me")
    assert link.is_symlink()
    assert load_settings(path).depth == 5
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["copy.toml"]


def test_a_failed_write_is_an_error_and_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(tmp_path / "file", "depth = 7\n")
    with pytest.raises(SettingsError, match="cannot be written"):
        write_settings(file / "below.toml", CopySettings(), "by me")

    def broken(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pagetier.kernels.config.file.os.fsync", broken)
    with pytest.raises(SettingsError, match="No space left"):
        write_settings(file, CopySettings(), "by me")
    assert file.read_text() == "depth = 7\n"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
