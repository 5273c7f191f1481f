"""Tests how quotas are written, and that wrong ones are rejected with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetier.daemon.config.fields import fields
from pagetier.daemon.config.loader import ConfigError, load
from pagetier.daemon.config.quota import ShareRange, TenantQuota
from pagetier.shm._core import TENANTS
from refused_starts import pagetierd

LLAMA = TenantQuota("llama-*", ShareRange(0.3, 1.0), ShareRange(0.2, 0.6))
TEST = TenantQuota("*-test", ShareRange(0.0, 0.1))
TABLE = '[quota]\n"llama-*" = { arena = [0.3, 1], disk = ["20%", 0.6] }\n"*-test" = { arena = [0, 0.1] }\n'
TEXT = "llama-*: arena 0.3-1, disk 0.2-0.6; *-test: arena 0-0.1"


def test_a_table_and_a_text_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "pagetierd.toml"
    file.write_text(TABLE)
    assert load(file, {}, {}).quota == (LLAMA, TEST) == load(None, {"PAGETIER_QUOTA": TEXT}, {}).quota
    (setting,) = (field.setting for field in fields() if field.path == "quota")
    assert setting.show((LLAMA, TEST)) == TEXT
    for quotas in ((LLAMA, TEST), (TenantQuota("a: b"),), (TenantQuota("*", disk=ShareRange(0.1, 0.15)),), ()):
        assert setting.read(setting.show(quotas)) == quotas
    assert setting.read("x: arena 20%-1.0") == setting.read({"x": {"arena": ["20.0%", 1]}})
    assert setting.read({}) == setting.read(" none ") == () and setting.show(()) == "none"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("quota = 3", "3 is not a table of quotas"),
        ('[quota]\n"x" = 0.3', 'the quota "x" is not a table'),
        ('[quota]\n"x" = {}', 'the quota "x" names nothing'),
        ('[quota]\n"" = { arena = [0, 1] }', '"" is not a pattern'),
        ('[quota]\n"a;b" = { arena = [0, 1] }', "without a semicolon"),
        ('[quota]\n"x" = { memory = [0, 1] }', 'has "memory": only arena and disk'),
        ('[quota]\n"x" = { arena = 0.5 }', "a minimum and a maximum are needed"),
        ('[quota]\n"x" = { arena = [0.5, 0.2] }', "has a minimum of arena above its maximum: 0.5 and 0.2"),
        ('[quota]\n"x" = { disk = [0, 0] }', "a maximum of 0 for disk"),
        ('[quota]\n"x" = { disk = [0, 1.5] }', "a share is a number from 0 to 1"),
        ('[quota]\n"x" = { disk = [true, 1] }', "a share is a number from 0 to 1"),
        (
            '[quota]\n"x" = { arena = [0.5, 1] }\n"y" = { arena = [0.4, 1] }',
            "minimums of arena add up to 0.9: at most 0.8",
        ),
        ('[quota]\n"x" = { disk = [0.81, 1] }', "minimums of disk add up to 0.81: at most 0.8"),
        ('[quota]\n"*" = { disk = [0, 1] }\n"y" = { disk = [0, 1] }', '"y" names nothing: "*" before it'),
        ("quota = 'x: arena 0-1; x: arena 0-1'", '"x" names nothing: "x" before it'),
        ('[quota]\n"x" = { disk = ["0.2", 1] }', 'disk = "0.2": a share is a number from 0 to 1, or a percentage'),
        ('[quota]\n"x" = { disk = [" 20%", 1] }', 'disk = " 20%": a share'),
        ('[quota]\n"x" = { disk = ["1e1%", 1] }', 'disk = "1e1%": a share'),
        ('[quota]\n"x" = { disk = ["٣%", 1] }', 'disk = "٣%": a share'),
        ('[quota]\n"x" = { disk = [0, "101%"] }', 'disk = "101%": a share'),
        ('[quota]\n"x" = { disk = [0, inf] }', "disk = inf: a share"),
        ('[quota]\n"x" = { disk = [0, 1e-12] }', "a maximum of 0 for disk"),
        ('[quota]\n" x" = { disk = [0, 1] }', 'the pattern " x" begins or ends with a space'),
        ("quota = ''", '"" names no quota: write "none"'),
        ("quota = ';'", '"" is not a quota, such as'),
        ("quota = 'x: arena 0-1;'", '"" is not a quota, such as'),
        ("quota = 'x: arena 0-.5'", 'arena = ".5": a share'),
        ("quota = 'x: arena 0-1, arena 0-0.5'", "is not a quota, such as"),
        ("quota = 'x: arena 0-1, cpu 1-2'", "is not a quota, such as"),
        ("[quota]\n" + "".join(f'"{n}" = {{ arena = [0, 1] }}\n' for n in range(TENANTS)), f"at most {TENANTS - 1}"),
        (
            '[arena]\nsize = "8KiB"\nframe_size = "4KiB"\n[quota]\n"x" = { arena = [0, 0.4] }',
            "less than one of the 2 frames",
        ),
    ],
)
def test_wrong_quotas_are_named(table: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "pagetierd.toml"
    file.write_text(table)
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    assert words in str(caught.value) and "quota" in str(caught.value) and str(file) in str(caught.value)


def test_minimums_may_fill_what_is_allowed() -> None:
    text = "; ".join(f"{name}: arena 0.1-1" for name in "abcdefgh")
    assert len(load(None, {"PAGETIER_QUOTA": text}, {}).quota) == 8


NAMES = st.text(st.characters(exclude_characters=";"), min_size=1, max_size=12) | st.sampled_from(["*", "a*", "b ?"])
SHARES = st.floats(-0.5, 1.5) | st.integers(-1, 2) | st.sampled_from(["30%", "100%", "7.25%", "1%%", "0.5", True])
TABLES = st.dictionaries(
    NAMES, st.dictionaries(st.sampled_from(["arena", "disk", "cpu"]), st.lists(SHARES, min_size=1, max_size=3))
)
WORDS = st.lists(
    st.sampled_from(["a*", ":", ";", ",", " ", "arena", "disk", "none", "0", "1", "0.5", "30%", "-", ".", "%"])
).map("".join)


@given(TABLES | WORDS | st.text())
def test_anything_is_read_or_refused_with_one_line(raw: object) -> None:
    (setting,) = (field.setting for field in fields() if field.path == "quota")
    try:
        quotas = setting.read(raw)
    except ValueError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert setting.read(setting.show(quotas)) == quotas
        for quota in quotas:
            assert 0 <= quota.arena.least <= quota.arena.most <= 1 and 0 <= quota.disk.least <= quota.disk.most <= 1


@pytest.mark.parametrize("value", ["", " ", ";"])
def test_an_empty_flag_is_refused(value: str) -> None:
    checked = pagetierd("--set", f"quota={value}", "--check")
    assert checked.code == 2 and "flag --set quota" in checked.text


def test_check_rejects_wrong_quotas(tmp_path: Path) -> None:
    file = tmp_path / "pagetierd.toml"
    file.write_text('[quota]\n"x" = { arena = [0.9, 1] }\n')
    checked = pagetierd("--config", str(file), "--check")
    assert checked.code == 2 and "add up to 0.9" in checked.text
