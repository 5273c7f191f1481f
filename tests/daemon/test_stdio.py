"""Output that cannot be written, and invalid numbers: one line and an exit code, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_daemon import DiskDaemon, Engine
from pagetier.daemon.cli.resize import resize
from pagetier.daemon.disk.status import Standing
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon, eventually

RUN = 'from pagetier.daemon.cli import main; main(prog_name="pagetier")'


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon() as daemon:
        yield daemon


def pagetier(*words: str, to: str = "/dev/null") -> subprocess.CompletedProcess[str]:
    with Path(to).open("w") as out:
        command = [sys.executable, "-c", RUN, *words]
        return subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", [["top", "--once", "--interval", "0.1"], ["stats"], ["stats", "--json"], ["--help"]])
def test_a_full_disk_behind_stdout_is_one_line_and_code_1(words: list[str], daemon: RunningDaemon) -> None:
    where = [] if words == ["--help"] else ["--socket", str(daemon.socket)]
    done = pagetier(*words, *where, to="/dev/full")
    assert done.stderr == "Error: the output could not be written: No space left on device\n"
    assert done.returncode == 1
    assert pagetier(*words, *where).returncode == 0


def test_a_resize_whose_output_is_lost_differs_from_a_rejected_one(daemon: RunningDaemon) -> None:
    refused = pagetier("resize", "--evict-low", "0.9", "--socket", str(daemon.socket))
    assert (refused.returncode, "is more than evict.high" in refused.stderr) == (1, True)
    done = pagetier("resize", "--evict-low", "0.001", "--socket", str(daemon.socket), to="/dev/full")
    assert done.stderr == "Error: the output could not be written: No space left on device\n"
    assert done.returncode == 1
    documented = " ".join(resize.help.split()) if resize.help else ""
    assert "1: rejected with nothing changed, or done but the output could not be written" in documented


@pytest.mark.parametrize("words", [["top", "--once", "--interval", "0.1"], ["stats"], ["stats", "--json"]])
@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_characters_that_the_encoding_lacks_become_question_marks(
    words: list[str], encoding: str, daemon: RunningDaemon
) -> None:
    command = [sys.executable, "-c", RUN, *words, "--socket", str(daemon.socket)]
    environ = os.environ | {"PYTHONIOENCODING": encoding}
    with daemon.client(name="名前 of an engine: long"):
        done = subprocess.run(command, capture_output=True, env=environ, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    if "--json" in words:
        assert json.loads(done.stdout)["clients"][0]["name"] == "名前 of an engine: long"
    else:
        assert ("名前 of" if encoding == "utf-8" else "?? of") in done.stdout.decode(encoding)


@pytest.mark.parametrize(
    ("program", "words"),
    [("cli", "--help"), ("cli", "stats --socket SOCKET"), ("main", "--help"), ("main", "--version")],
)
def test_a_closed_stdout_is_one_line_and_code_1(program: str, words: str, daemon: RunningDaemon) -> None:
    run = RUN.replace("daemon.cli", f"daemon.{program}")
    shell = f"exec {sys.executable} -c '{run}' {words.replace('SOCKET', str(daemon.socket))} >&-"
    done = subprocess.run(["sh", "-c", shell], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.stderr == "Error: the output could not be written: Bad file descriptor\n"
    assert done.returncode == 1


def test_errors_without_stderr_do_not_go_to_stdout() -> None:
    for program, words, code in (("cli", "stats --socket /nope", 3), ("main", "--arena-size lots", 2)):
        shell = f"exec {sys.executable} -c '{RUN.replace('daemon.cli', f'daemon.{program}')}' {words} 2>&-"
        done = subprocess.run(["sh", "-c", shell], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
        assert (done.stdout, done.returncode) == ("", code)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_socket_that_the_user_may_not_open_says_how_to_allow_it(daemon: RunningDaemon) -> None:
    Path(daemon.folder.name).chmod(0o755)
    become = "import os, pagetier.daemon.cli.stats; os.setgroups([]); os.setgid(65534)"
    code = RUN.replace("main(", f"{become}; os.setuid(65534); main(", 1)
    command = [sys.executable, "-c", code, "stats", "--socket", str(daemon.socket)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "start pagetierd" in done.stderr) == (3, False)
    assert "may not open the daemon's socket; to allow it, list the user in access.watch_users or" in done.stderr


def test_a_pipe_whose_reader_left_ends_the_command_silently(daemon: RunningDaemon) -> None:
    command = [sys.executable, "-c", RUN, "stats", "--json", "--socket", str(daemon.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == ""
    assert child.returncode == 1


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "0"])
def test_an_invalid_interval_is_a_usage_error(seconds: str) -> None:
    done = pagetier("top", "--once", "--interval", seconds)
    assert (done.returncode, "Traceback" in done.stderr, "--interval" in done.stderr) == (2, False, True)


NO_STDERR = ["2>&-", "2>/dev/full", "2>&- >&-", "2>&- >&- <&-"]


@pytest.mark.parametrize("without", NO_STDERR)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--check --config /does/not/exist", Exit.USAGE),
        ("--config /does/not/exist", Exit.USAGE),
        ("--no-such-flag", Exit.USAGE),
        ("--name pagetier-test-none --socket /dev/null/s --arena-size 1MiB", Exit.REFUSED),
        ("--name pagetier-test-none --give-back", Exit.OK),
    ],
)
def test_a_daemon_without_stderr_has_the_same_exit_codes(words: str, code: Exit, without: str) -> None:
    run = RUN.replace("daemon.cli", "daemon.main").replace('prog_name="pagetier"', "")
    shell = f"exec {sys.executable} -c '{run}' {words} {without}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, timeout=60, check=False)
    assert done.returncode == code


@pytest.mark.parametrize("without", NO_STDERR)
def test_a_daemon_without_stderr_serves_with_its_worker(without: str) -> None:
    with DiskDaemon() as daemon:
        daemon.stop()
        run = RUN.replace("daemon.cli", "daemon.main").replace('prog_name="pagetier"', "")
        words = f"--name {daemon.name} --socket {daemon.socket} --arena-size 1MiB --arena-frame-size 64KiB"
        words += f" --disk-path {daemon.disk} --disk-size 64MiB --disk-environments 2"
        command = ["sh", "-c", f"exec {sys.executable} -c '{run}' {words} {without}"]
        with subprocess.Popen(command) as process:
            assert eventually(daemon.socket.is_socket)
            assert daemon.until(lambda disk: disk.standing is Standing.OPEN)
            with Engine(daemon) as engine:
                engine.store_through(daemon, range(8))
                assert engine.places(range(8)) == {"memory": 8}
            process.terminate()
        assert process.returncode == 0
        assert daemon.leftovers() == []
