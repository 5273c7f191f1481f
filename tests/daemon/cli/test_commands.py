"""The command line as a whole: commands are listed and completed without being imported, and name a missing daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from pagetier.daemon.cli import COMMANDS, daemon_connection, main
from pagetier.daemon.cli.command_table import CommandEntry, CommandTable
from pagetier.daemon.cli.pages import pages
from pagetier.shm.exit_codes import Exit
from pagetier.shm.protocol import BUILD
from running_daemon import RunningDaemon

# Modules that a list of commands does not need. A run ends with the list of those that it imported.
HEAVY = ["numpy", "rich", "msgspec", "asyncio", "posix_ipc", "lmdb", "pagetier.shm._core", "pagetier.client"]
RUN = f"""
import json, sys
from pagetier.daemon.cli import main
try:
    main(prog_name="pagetier")
finally:
    json.dump([name for name in {HEAVY} if name in sys.modules], sys.stderr)
"""
RUN_DAEMON = "from pagetier.daemon.main import main; main(prog_name='pagetierd')"


def pagetier(*words: str) -> Result:
    return CliRunner().invoke(main, words, terminal_width=200)


def started(*words: str, code: str = RUN, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


def offered(line: str, code: str = RUN) -> subprocess.CompletedProcess[str]:
    """Completes the last word of a line."""
    words, program = line.split(" "), line.split(" ", maxsplit=1)[0]
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return started(code=code, **{f"_{program.upper()}_COMPLETE": "bash_complete"}, **variables)


def test_help_lists_every_command_with_what_it_does() -> None:
    output = pagetier("--help").output
    for name, summary in {
        "stats": "Show the contents of the cache and how it is used",
        "flush": "Drop pages, or write all pages to disk",
        "doctor": "Check the host and the daemon; each line says ok or what to do",
        "pages": "List namespaces",
    }.items():
        assert any(line.split()[:1] == [name] and summary in line for line in output.splitlines()), output
    assert all(f"  {code.value}  {code.meaning}" in output for code in Exit)


@pytest.mark.parametrize(("table", "name"), [(table, name) for table in (main, pages) for name in table.entries])
def test_a_summary_is_the_first_sentence_of_the_commands_help(table: CommandTable, name: str) -> None:
    command = table.get_command(click.Context(table), name)
    assert command is not None and command.help is not None
    assert table.entries[name].summary + "." == command.help.partition("\n")[0]


def test_help_imports_nothing_heavy() -> None:
    assert json.loads(started("--help").stderr) == []


def test_the_version_names_the_build_that_must_match_the_daemons() -> None:
    result = pagetier("--version")
    assert (result.exit_code, BUILD.removeprefix("pagetier ") in result.output) == (0, True)


def test_a_mistyped_command_suggests_the_nearest() -> None:
    result = pagetier("stast")
    assert (result.exit_code, 'did you mean "stats"?' in result.output) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("ls", "pagetier pages ls"),
        ("unpin", "pagetier pages unpin"),
        ("wait", "pagetier stats --wait"),
        ("selftest", "pagetier doctor --write"),
        ("replay", "pagetier-bench replay"),
    ],
)
def test_a_command_of_an_earlier_build_is_answered_with_the_new_one(former: str, now: str) -> None:
    result = pagetier(former, "--json")
    assert (result.exit_code, f"it is `{now}" in result.output) == (Exit.USAGE, True)


def test_a_command_that_cannot_be_imported_is_listed_and_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "entries", {**COMMANDS, "broken": CommandEntry("pagetier.nowhere", "Do nothing")})
    listed = pagetier("--help")
    assert listed.exit_code == 0
    assert "broken" in listed.output and "Show the contents of the cache" in listed.output
    called = pagetier("broken")
    assert (called.exit_code, "cannot be loaded" in called.output) == (Exit.WRONG, True)


@pytest.mark.parametrize("words", ["stats", "top", "flush --all --yes", "resize --evict-free 0.5", "pages ls"])
@pytest.mark.parametrize("place", ["none.sock", "file", "long" * 40])
def test_without_a_daemon_a_command_prints_one_line_and_ends_with_code_3(
    words: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    result = pagetier(*words.split(), "--socket", str(tmp_path / place))
    assert result.exit_code == Exit.UNREACHABLE
    assert len(result.output.splitlines()) == 1
    assert str(tmp_path / place) in result.output and "pagetierd" in result.output


def test_a_stopped_daemon_is_told_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_connection, "GREETING_S", 0.1)
    monkeypatch.setattr(daemon_connection, "_HTTP_S", 0.1)
    with RunningDaemon() as daemon:
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            result = pagetier("stats", "--socket", str(daemon.socket))
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        with daemon.client():  # it is attached after the daemon has read what came before
            assert daemon.lines("event=peer_refused") == []
    assert (result.exit_code, "SIGSTOP" in result.output) == (Exit.UNREACHABLE, True)


EMPTY = ("stats --socket", "doctor --socket", "doctor --config", "unit install --root", "unit remove --root")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        *((f"{words}=", "an empty value names no file") for words in EMPTY),
        *((f"top --once --interval {seconds}", "--interval") for seconds in ("nan", "inf", "-1", "0")),
        ("top --interval x", "'x' is not a valid number."),
        ("stats --json --short", "--json and --short exclude each other"),
        ("reclaim x", "Invalid value for 'SLOT': 'x' is not a valid whole number."),
        ("pages ls --most 1.5", "'1.5' is not a valid whole number."),
        *((f"config --{option} x", "`pagetierd --check --config FILE`") for option in ("check", "config")),
        ("config --jsn", "--json"),
        ("flush --yes", "--all"),
        (
            "resize --arena-size 1GiB",
            "the size of its arena (arena.size): set it in pagetierd's configuration, then stop",
        ),
        ("resize --disk-siz 1GiB", "--disk-size"),
        ("flush --all --namespace model --yes", "--namespace"),
    ],
)
def test_an_invalid_command_is_a_usage_error_before_a_daemon_is_looked_for(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = pagetier(*line.split())
    assert (result.exit_code, "Traceback" in result.output) == (Exit.USAGE, False)
    assert words in result.output
    assert list(tmp_path.iterdir()) == []


# --- completion ------------------------------------------------------------------------------------------------------


def test_commands_are_offered_without_importing_them() -> None:
    done = offered("pagetier st")
    assert done.stdout == "plain,stats\n"
    assert json.loads(done.stderr) == []


def test_the_words_of_a_choice_are_offered() -> None:
    done = offered("pagetierd --set disk.w", RUN_DAEMON)
    assert done.stdout.startswith("plain,disk.write=evict\nplain,disk.write=through\nplain,disk.write=second\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion_script(shell: str) -> None:
    done = started(_PAGETIER_COMPLETE=f"{shell}_source")
    assert "_PAGETIER_COMPLETE" in done.stdout, done.stderr


def test_a_folder_in_place_of_the_socket_is_named(tmp_path: Path) -> None:
    result = pagetier("stats", "--socket", str(tmp_path))
    said = f"{tmp_path}: it is a folder, not a socket: the daemon's may be {tmp_path}/pagetier.sock; name the socket"
    assert (result.exit_code, said in result.output) == (Exit.UNREACHABLE, True), result.output


def test_the_socket_of_http_is_named(tmp_path: Path) -> None:
    with RunningDaemon("8MiB", "64KiB", "--set", f"metrics.listen={tmp_path}/http"):
        result = pagetier("stats", "--socket", f"{tmp_path}/http")
    said = f"cannot use the daemon on {tmp_path}/http: it is a socket of the HTTP interface"
    assert (result.exit_code, said in result.output) == (Exit.UNREACHABLE, True), result.output


def test_a_misspelt_variable_is_refused(tmp_path: Path) -> None:
    done = started("stats", PAGETIER_SOCKET="", PAGETIER_SOKET=str(tmp_path / "socket"))
    said = "Error: the variable PAGETIER_SOKET is unknown; did you mean PAGETIER_SOCKET?"
    assert done.returncode == Exit.UNREACHABLE and said in done.stderr
