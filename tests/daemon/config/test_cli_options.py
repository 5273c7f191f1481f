"""Tests the settings as flags of a command."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from pagetier.daemon.config.cli_options import changes_meant, config_flags, config_options
from pagetier.daemon.config.id_ranges import IdRange
from pagetier.daemon.config.loader import Config, ConfigError, fields, load

FLAGS = [field for field in fields() if field.has_flag]


def run(*arguments: str) -> tuple[list[Config], str, int]:
    seen: list[Config] = []

    @click.command()
    @click.option("--config")
    @config_options
    def pagetierd(config: str | None, **parameters: str | None) -> None:
        seen.append(load(None, {}, config_flags({**parameters, "config": config})))

    result = CliRunner().invoke(pagetierd, arguments, terminal_width=200)
    return seen, result.output, result.exit_code


def test_flags_reach_the_configuration() -> None:
    given = ("--name", "other", "--arena-size", "2GiB", "--set", "evict.keep_share=0.4", "--set=access.users=root,7")
    seen, output, code = run(*given)
    assert code == 0, output
    (config,) = seen
    assert (config.name, config.arena.size, config.evict.keep_share) == ("other", 2 << 30, 0.4)
    assert config.access.users == (IdRange(0, 0), IdRange(7, 7))
    assert config.arena.frame_size == 1 << 20


def test_without_flags_settings_have_their_defaults() -> None:
    assert run()[0] == [load(None, {}, {})]


def test_every_setting_can_be_set_and_its_shown_default_reads_back() -> None:
    for field in fields():
        default = "/x/y.sock" if field.key == "socket" else field.setting.show(field.default)
        seen, output, code = run("--set", f"{field.path}={default}")
        assert code == 0, output
        if field.key != "socket":
            assert seen == [load(None, {}, {})]


def test_set_overrides_a_flag_and_an_earlier_set() -> None:
    for given in (["--set", "name=last", "--name", "first"], ["--set", "name=first", "--set", "name=last"]):
        (config,), _, _ = run(*given)
        assert config.name == "last"


def test_a_mistake_is_that_of_the_option_which_has_it() -> None:
    none = {field.parameter: None for field in FLAGS} | {"changes": ()}
    by_set, by_flag = {"changes": (("arena.size", "12x"),)}, {"arena_size": "12x"}
    for given, blamed in ((by_set, "flag --set arena.size: "), (by_flag, "flag --arena-size: ")):
        with pytest.raises(ConfigError, match=f"^{blamed}"):
            load(None, {}, config_flags({**none, **given}))


def test_a_value_may_contain_an_equals_sign_and_be_empty() -> None:
    (config,), _, _ = run("--set", "remote.url=s3://pages/kv?endpoint=http://h:1", "--set", "access.users=")
    assert (config.remote.url, config.access.users) == ("s3://pages/kv?endpoint=http://h:1", ())


@pytest.mark.parametrize("word", ["evict.policy", "lru", ""])
def test_a_set_without_a_value_is_a_usage_error(word: str) -> None:
    _, output, code = run("--set", word)
    assert code == 2 and f'"{word}" is not NAME=VALUE, such as' in output


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("evict.policyx", 'did you mean "evict.policy"?'),
        ("Evict-Policy", 'did you mean "evict.policy"?'),
        ("PAGETIER_EVICT_POLICY", 'did you mean "evict.policy"?'),
        ("policy", "known are evict.policy"),
        ("listen", "known are metrics.listen, http.listen"),
        ("log.depth", "known are log.level"),
        ("log", "known are log.level"),
        ("depth", "known are name, socket, quota, arena, "),
    ],
)
def test_the_error_for_an_unknown_name_names_near_settings(name: str, near: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(None, {}, {name: "1"})
    assert f'unknown setting "{name}"; {near}' in str(refused.value)


@pytest.mark.parametrize("option", ["--evict-policy", "--evict-policyx"])
def test_an_option_for_a_setting_without_a_flag_of_its_own_is_answered_with_set(option: str) -> None:
    assert changes_meant(option) == ["--set evict.policy=VALUE"]


def test_help_names_flags_and_defaults() -> None:
    _, output, code = run("--help")
    assert code == 0
    assert [field.path for field in FLAGS] == ["name", "socket", "arena.size", "disk.path", "disk.size"]
    assert all(field.flag in output and field.setting.metavar in output for field in FLAGS)
    joined = " ".join(output.split())
    assert "--set NAME=VALUE" in joined and "[default: 1GiB]" in joined


def test_an_unknown_flag_is_a_usage_error() -> None:
    _, output, code = run("--arena-siez", "1G")
    assert code == 2
    assert "--arena-size" in output
