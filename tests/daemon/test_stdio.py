"""Output that cannot be written: one line and an exit code, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bare_engine import Engine
from disk_daemon import DiskDaemon
from eventually import eventually
from other_users import NOBODY, as_root, output_as
from pagetier.daemon.cli.resize import resize
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon

PROGRAMS = {"pagetier": "pagetier.daemon.cli", "pagetierd": "pagetier.daemon.main"}
FULL = "Error: the output could not be written: No space left on device\n"
CLOSED = "Error: the output could not be written: Bad file descriptor\n"
NO_STDERR = ["2>&-", "2>/dev/full", "2>&- >&- <&-"]


def command(line: str) -> list[str]:
    """Returns a command that runs a line of the shell, whose first word is one of our programs."""
    program, _, words = line.partition(" ")
    code = f'from {PROGRAMS[program]} import main; main(prog_name="{program}")'
    return ["sh", "-c", f"exec {sys.executable} -c '{code}' {words}"]


def run(line: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(line), capture_output=True, env=os.environ | environ, timeout=60, check=False)


@pytest.mark.parametrize("words", ["top --once --interval 0.1", "stats", "stats --json", "--help"])
def test_a_full_disk_behind_stdout_is_one_line_and_code_1(words: str, daemon: RunningDaemon) -> None:
    line = f"pagetier {words}" if words == "--help" else f"pagetier {words} --socket {daemon.socket}"
    done = run(f"{line} >/dev/full")
    assert (done.stderr.decode(), done.returncode) == (FULL, 1)
    assert run(line).returncode == 0


def test_a_resize_whose_output_is_lost_differs_from_a_rejected_one(daemon: RunningDaemon) -> None:
    refused = run(f"pagetier resize --disk-size 1GiB --socket {daemon.socket}")
    assert (refused.returncode, b"disk.size: only a restart" in refused.stderr) == (1, True)
    done = run(f"pagetier resize --evict-free 0.001 --socket {daemon.socket} >/dev/full")
    assert (done.stderr.decode(), done.returncode) == (FULL, 1)
    documented = " ".join(resize.help.split()) if resize.help else ""
    assert "1: rejected with nothing changed, or done but the output could not be written" in documented


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        ("top --once --interval 0.1", "ascii"),
        *(("stats", encoding) for encoding in ("latin-1", "ascii", "utf-8")),
        ("stats --json", "ascii"),
    ],
)
def test_characters_that_the_encoding_lacks_become_question_marks(
    words: str, encoding: str, daemon: RunningDaemon
) -> None:
    with daemon.client(name="名前 of an engine: long"):
        done = run(f"pagetier {words} --socket {daemon.socket}", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    if "--json" in words:
        assert json.loads(done.stdout)["clients"][0]["name"] == "名前 of an engine: long"
    else:
        assert ("名前 of" if encoding == "utf-8" else "?? of") in done.stdout.decode(encoding)


@pytest.mark.parametrize(
    "line", ["pagetier --help", "pagetier stats --socket SOCKET", "pagetierd --help", "pagetierd --version"]
)
def test_a_closed_stdout_is_one_line_and_code_1(line: str, daemon: RunningDaemon) -> None:
    done = run(f"{line.replace('SOCKET', str(daemon.socket))} >&-")
    assert (done.stderr.decode(), done.returncode) == (CLOSED, 1)


@pytest.mark.parametrize(("lost", "why"), [(">/dev/full", FULL), (">&-", CLOSED)])
def test_a_check_whose_output_is_lost_is_no_start_that_is_refused(given: list[str], lost: str, why: str) -> None:
    done = run(f"pagetierd --check {' '.join(given)} {lost}")
    assert (done.stderr.decode(), done.returncode) == (why, 1)


@pytest.mark.parametrize(("line", "code"), [("pagetier stats --socket /nope", 3), ("pagetierd --arena-size lots", 2)])
def test_errors_without_stderr_do_not_go_to_stdout(line: str, code: int) -> None:
    done = run(f"{line} 2>&-")
    assert (done.stdout, done.returncode) == (b"", code)


@as_root
def test_a_socket_that_the_user_may_not_open_says_how_to_allow_it(daemon: RunningDaemon) -> None:
    Path(daemon.folder.name).chmod(0o755)
    imports = "import pagetier.daemon.cli.stats; from pagetier.daemon.cli import main"
    code, output = output_as(NOBODY, imports, "main()", "stats", "--socket", str(daemon.socket))
    assert (code, "start pagetierd" in output) == (3, False)
    assert "access.watch_users" in output
    words = f"whether a daemon still runs there, root sees with `pagetier doctor --socket {daemon.socket}`"
    assert words in " ".join(output.split())


@as_root
def test_a_socket_in_a_closed_folder_names_the_folder(daemon: RunningDaemon) -> None:
    Path(daemon.folder.name).chmod(0o755)
    folder = Path(daemon.folder.name) / "closed"
    folder.mkdir(mode=0o700)
    place = ("--socket", str(folder / "inside" / "below" / "socket"))
    imports = "import pagetier.daemon.cli.stats, pagetier.daemon.cli.doctor; from pagetier.daemon.cli import main"
    for command, least in (("stats", 3), ("doctor", 1)):
        code, output = output_as(NOBODY, imports, "main()", command, *place)
        assert (code, f"may not enter {folder}:" in output) == (least, True), output


@as_root
@pytest.mark.parametrize(
    ("words", "remedy"), [("flush --all --yes", "access.users"), ("resize --evict-free 0.5", "as root")]
)
def test_a_closed_socket_names_what_allows_the_command(daemon: RunningDaemon, words: str, remedy: str) -> None:
    Path(daemon.folder.name).chmod(0o755)
    imports = "import pagetier.daemon.cli.flush, pagetier.daemon.cli.resize; from pagetier.daemon.cli import main"
    code, output = output_as(NOBODY, imports, "main()", *words.split(), "--socket", str(daemon.socket))
    assert (code, remedy in output, "access.watch_users" in output) == (3, True, False)


def test_a_pipe_whose_reader_left_ends_the_command_silently(daemon: RunningDaemon) -> None:
    line, pipe = command(f"pagetier stats --json --socket {daemon.socket}"), subprocess.PIPE
    waiting = ["sh", "-c", 'read line; exec "$@"', "sh", *line]  # it begins when the reader has left
    with subprocess.Popen(waiting, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        child.stdout.close()
        child.stdin.close()
        assert child.stderr.read() == ""
    assert child.returncode == 1


@pytest.mark.parametrize("without", NO_STDERR)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--check --config /does/not/exist", Exit.USAGE),
        ("--config /does/not/exist", Exit.USAGE),
        ("--no-such-flag", Exit.USAGE),
        ("--name pagetier-test-none --socket /dev/null/s --arena-size 1MiB", Exit.REFUSED),
        ("--name pagetier-test-none --release-memory", Exit.OK),
    ],
)
def test_a_daemon_without_stderr_has_the_same_exit_codes(words: str, code: Exit, without: str) -> None:
    assert run(f"pagetierd {words} {without}").returncode == code


@pytest.mark.parametrize("without", NO_STDERR)
def test_a_daemon_without_stderr_serves_with_its_worker(without: str) -> None:
    daemon = DiskDaemon()
    words = f"--name {daemon.name} --socket {daemon.socket} --arena-size 1MiB --set arena.frame_size=64KiB"
    words += f" --disk-path {daemon.disk} --disk-size 64MiB"
    with daemon.folder, subprocess.Popen(command(f"pagetierd {words} {without}")) as process, ExitStack() as failing:
        failing.callback(process.kill)
        daemon.process = process
        assert eventually(daemon.socket.is_socket)
        assert daemon.until(lambda disk: disk.standing is Standing.OPEN)
        standard = [Path(f"/proc/{process.pid}/fd/{descriptor}").readlink() for descriptor in range(3)]
        assert not [path for path in standard if path.parent == Path("/dev/shm") or daemon.name in path.name], standard
        with Engine(daemon) as engine:
            daemon.store_through(engine, range(8))
            assert engine.places(range(8)) == {"memory": 8}
        process.terminate()
        assert process.wait() == 0
        assert daemon.leftovers() == []
