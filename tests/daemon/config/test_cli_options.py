"""Tests the settings as flags of a command."""

from __future__ import annotations

import click
from click.testing import CliRunner

from pagetier.daemon.config.cli_options import config_flags, config_options
from pagetier.daemon.config.id_ranges import IdRange
from pagetier.daemon.config.loader import Config, fields, load

GIVEN = {"--name": "other", "--arena-size": "2GiB", "--evict-high": "0.5", "--access-users": "root,7"}


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
    seen, output, code = run(*(word for pair in GIVEN.items() for word in pair))
    assert code == 0, output
    (config,) = seen
    assert (config.name, config.arena.size, config.evict.high) == ("other", 2 << 30, 0.5)
    assert config.access.users == (IdRange(0, 0), IdRange(7, 7))
    assert config.arena.frame_size == 1 << 20


def test_without_flags_settings_have_their_defaults() -> None:
    assert run()[0] == [load(None, {}, {})]


def test_every_setting_has_a_flag_and_its_shown_default_reads_back() -> None:
    for field in fields():
        default = "/x/y.sock" if field.key == "socket" else field.setting.show(field.default)
        seen, output, code = run(field.flag, default)
        assert code == 0, output
        if field.key != "socket":
            assert seen == [load(None, {}, {})]


def test_help_names_flags_and_defaults() -> None:
    _, output, code = run("--help")
    assert code == 0
    assert all(field.flag in output and field.setting.metavar in output for field in fields())
    joined = " ".join(output.split())
    assert all(f"[default: {text}]" in joined for text in ("1MiB", "0660", "1m", "0.005", "populate"))


def test_an_unknown_flag_is_a_usage_error() -> None:
    _, output, code = run("--arena-siez", "1G")
    assert code == 2
    assert "--arena-size" in output
