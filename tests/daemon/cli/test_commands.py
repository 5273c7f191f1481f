"""Commands are listed without being imported."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from pagetier.daemon import cli
from pagetier.daemon.cli import COMMANDS, CommandEntry, main
from pagetier.shm.exit_codes import Exit
from pagetier.shm.protocol import BUILD

# Modules that a list of commands does not need.
HEAVY = ["numpy", "rich", "msgspec", "asyncio", "posix_ipc", "pagetier.shm._core", "pagetier.client"]

LOADED = f"""
import json, sys
from pagetier.daemon.cli import main
main(["--help"], standalone_mode=False)
json.dump([name for name in {HEAVY} if name in sys.modules], sys.stderr)
"""


def test_help_lists_every_command_with_what_it_does() -> None:
    output = CliRunner().invoke(main, ["--help"], terminal_width=200).output
    for name, summary in {
        "stats": "Show the contents of the cache and how it is used",
        "flush": "Drop pages, or write all pages to disk",
        "doctor": "Check the host and the daemon; each line says ok or what to do",
        "replay": "Replay",
    }.items():
        assert any(line.split()[:1] == [name] and summary in line for line in output.splitlines()), output


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr) == []


def test_exit_codes_are_documented() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    assert all(f"  {code.value}  {code.meaning}" in output for code in Exit)


def test_the_version_names_the_build_that_must_match_the_daemons() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert BUILD.removeprefix("pagetier ") in result.output


def test_a_mistyped_command_suggests_the_nearest() -> None:
    result = CliRunner().invoke(main, ["stast"])
    assert result.exit_code == Exit.USAGE
    assert 'did you mean "stats"?' in result.output


def test_a_command_that_cannot_be_imported_is_listed_and_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {**COMMANDS, "broken": CommandEntry("pagetier.nowhere", "Do nothing")})
    listed = CliRunner().invoke(main, ["--help"])
    assert listed.exit_code == 0
    assert "broken" in listed.output
    assert "Show the contents of the cache" in listed.output
    called = CliRunner().invoke(main, ["broken"])
    assert called.exit_code == Exit.WRONG
    assert "cannot be loaded" in called.output


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_the_first_sentence_of_the_commands_help(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None and command.help is not None
    assert COMMANDS[name].summary + "." == command.help.partition("\n")[0]
