"""Runs `pagetier-bench serve` with a program like vLLM and a real daemon: the report, refusals, and what is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fake_vllm_serve
from eventually import PATIENCE_S, eventually
from pagetier.client.cli.bench import daemon as bench_daemon
from pagetier.client.cli.bench.command import main
from pagetier.client.cli.bench.comparison import arena_size, place
from pagetier.client.cli.bench.daemon import own_environment, running_daemon
from pagetier.client.cli.bench.programs import BenchmarkError, Program
from pagetier.client.cli.bench.resident import session_bytes
from process_states import arguments_of, state_of

_HEEDS_INT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
_COMMAND = f"{_HEEDS_INT}; from pagetier.client.cli.bench.command import main; main(prog_name='pagetier-bench')"
SMALL = ["--arena", "64MiB", "--frame-size", "64KiB", "--prompt-tokens", "512", "--no-native"]
MIB = 1 << 20


class Host:
    """A host whose PATH has a `vllm`, with a temporary folder and a name of segments of its own."""

    def __init__(self, folder: Path) -> None:
        programs, self.temporary = folder / "bin", folder / "tmp"
        programs.mkdir()
        self.temporary.mkdir()
        self.vllm = programs / "vllm"
        self.vllm.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake_vllm_serve.__file__}" "$@"\n')
        self.vllm.chmod(0o755)
        harness = str(Path(fake_vllm_serve.__file__).parent)
        self.environment = os.environ | {"PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(self.temporary)}
        self.environment["PYTHONPATH"] = os.pathsep.join([harness, *sys.path])
        self.prefix = f"{folder.name}-"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=self.environment, text=True, capture_output=True, check=False
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", _COMMAND, "serve", "fake", *arguments]

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Yields the command while it runs."""
        command = self.command(*arguments)
        with subprocess.Popen(command, env=self.environment, text=True, stderr=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()

    def processes(self) -> list[int]:
        """Returns the living processes that have this host's environment, other than this test."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and state_of(int(folder.name)) not in "ZX":
                try:
                    if str(self.temporary).encode() in (folder / "environ").read_bytes():
                        found.append(int(folder.name))
                except OSError:
                    continue
        return found

    def programs(self) -> set[str]:
        """Returns the names of what these processes run, with those of scripts."""
        return {Path(word).name for pid in self.processes() for word in arguments_of(pid)}

    def shared_memory(self) -> list[Path]:
        """Returns what the children of `vllm` have in /dev/shm."""
        return list(Path("/dev/shm").glob(f"{self.prefix}*"))

    def is_clean(self) -> bool:
        """Returns whether no process, no file and no segment of a process that has ended is left."""
        left = [*self.temporary.iterdir(), *self.shared_memory(), *orphaned_segments()]
        return not self.processes() and not left


@pytest.fixture
def host() -> Iterator[Host]:
    # tmp_path is too long for a socket in a folder below it.
    with tempfile.TemporaryDirectory(prefix="pt-") as folder:
        there = Host(Path(folder))
        yield there
        assert there.is_clean(), (there.processes(), list(there.temporary.iterdir()), there.shared_memory())


def orphaned_segments() -> list[Path]:
    """Returns the segments of a benchmark's daemons that no process maps. Other tests' daemons may be running."""
    mapped = set[str]()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped |= set(re.findall(r"/dev/shm/(\S+)", maps.read_text()))
    return [file for file in Path("/dev/shm").glob("pagetier-bench-????????.*") if file.name not in mapped]


def rows_of(report: dict[str, Any], measure: str) -> dict[str, Any]:
    return {row["system"]: row for row in report["rows"] if row["measure"] == measure}


def test_the_list_of_commands_cuts_no_sentence() -> None:
    listed = CliRunner().invoke(main, ["--help"]).output.partition("Commands:")[2]
    assert "..." not in listed
    assert all(command in listed for command in ("calibrate", "replay", "serve"))


def test_a_comparison_reports_hits_times_and_memory_of_each_system(host: Host) -> None:
    done = host.run(*SMALL, "--rounds", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["different_answers"] == {"vLLM alone": 0, "pagetier": 0} and report["evicted_pages"] == 0
    chats = report["requests"] // 2
    assert chats * 256 > fake_vllm_serve.CACHE_TOKENS
    hits = rows_of(report, "prompt tokens that hit")
    # The system prompt of all chats but the first, and the first turn of each; a next token may be equal by chance.
    least = 100 * ((chats - 1) * 128 + chats * 384) / (chats * (384 + 512))
    assert least <= hits["pagetier"]["result"]["value"] < least + 0.2
    assert hits["vLLM alone"]["result"]["value"] < hits["pagetier"]["result"]["low"]
    assert rows_of(report, "memory of the daemon with its arena")["pagetier"]["result"]["low"] > 64
    for system in ("vLLM alone", "pagetier"):
        assert 5 < rows_of(report, "memory of the engine")[system]["result"]["value"] < 200
    returning = rows_of(report, "time to first token, returning prompts")
    assert returning["vLLM alone"]["over_alone"] is None and returning["pagetier"]["over_alone"]["value"] > 0


def test_the_output_says_first_what_it_will_do_and_then_how_long(host: Host) -> None:
    done = host.run(*SMALL, "--rounds", "2", "--chats", "3", "--at-once", "2", "--", "--odd")
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert said[0].startswith("2 rounds: each starts `vllm serve fake` 2 times: vLLM alone, pagetier")
    assert "native offloading is left out" in said[1] and "`make race`" in said[1]
    assert any(line.startswith("prompts: 3 chats of 384 tokens") for line in said)
    assert f"vLLM's own cache holds {fake_vllm_serve.CACHE_TOKENS:,} tokens" in said
    assert [line for line in said if line.startswith("note: it may still have a chat") and line.endswith("--chats 8")]
    assert any(line.endswith("if none hits; 4 runs") for line in said)
    turns = [line.split(": start")[0] for line in said if ": start" in line]
    assert turns == [f"round {at}" for at in ("1, vLLM alone", "1, pagetier", "2, pagetier", "2, vLLM alone")]
    assert any(line.startswith("round 1 is done; 1 round more: about") for line in said)
    assert "of 12: vLLM alone 0, pagetier 12" in done.stdout
    assert "returning prompts, ms (lower is better)" in done.stdout


def test_an_engine_that_does_not_say_what_its_cache_holds_needs_a_number_of_chats(host: Host) -> None:
    without = host.run(*SMALL, "--rounds", "1", "--", "--no-cache-size")
    assert (without.returncode, "the size of its cache: give --chats" in without.stderr) == (1, True), without.stderr
    given = host.run(*SMALL, "--rounds", "1", "--chats", "2", "--", "--no-cache-size")
    assert given.returncode == 0, given.stderr
    assert "own cache holds" not in given.stderr and "note:" not in given.stderr


def test_a_trace_replaces_the_chats(host: Host, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"input_length": 130, "hash_ids": [1, 2, 3]}, {"input_length": 192, "hash_ids": [1, 2, 4]}]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = [*SMALL, "--rounds", "1", "--json", "--trace", str(trace), "--block-tokens", "64"]
    done = host.run(*given)
    assert done.returncode == 0, done.stderr
    assert "prompts: 2 of 2 requests of the trace" in done.stderr
    hits = rows_of(json.loads(done.stdout), "prompt tokens that hit")
    assert hits["pagetier"]["result"]["value"] == pytest.approx(100 * 128 / 320)


def test_what_cannot_work_is_refused_before_anything_starts(host: Host, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("{}\n")
    for arguments, reason in {
        ("--arena", "900TiB"): "too little memory for an arena of 900.0 TiB",
        ("--arena", "1MiB"): "at least 64 MiB",
        ("--trace", str(trace)): "line 1",
        ("--requests", "3"): "--requests needs --trace",
        ("--", "--port", "80"): "leave out --port",
        ("--", "--kv-offloading-size=3"): "leave out --kv-offloading-size",
    }.items():
        refused = CliRunner(env=host.environment).invoke(main, ["serve", "fake", *arguments])
        assert (refused.exit_code, refused.stdout) == (2, "") and reason in refused.stderr, refused.stderr
    host.vllm.unlink()
    done = host.run(*SMALL)
    assert done.returncode == 2 and "there is no program vllm in" in done.stderr and "install vLLM" in done.stderr


def test_a_server_that_does_not_start_is_reported_with_its_errors_and_its_output(host: Host) -> None:
    done = host.run(*SMALL, "--", "--ends")
    assert (done.returncode, done.stdout) == (1, "")
    (log,) = host.temporary.iterdir()
    assert f"vllm ended with exit code 1; its whole output is in {log}\n" in done.stderr
    errors, _, end = done.stderr.partition("the end of its output:\n")
    assert errors.endswith(
        "the errors in its output:\n  ValueError: this model does not exist\n"
        "  RuntimeError: Engine core initialization failed\n"
    )
    assert end.count("File ...") == 11
    assert log.read_text().count("File ...") == 20
    log.unlink()


@pytest.mark.parametrize(
    ("number", "code", "children"),
    [(signal.SIGINT, 130, ["--orderly", "--stubborn"]), (signal.SIGTERM, 143, ["--orderly"])],
    ids=["INT", "TERM"],
)
def test_a_comparison_that_is_interrupted_leaves_nothing(
    host: Host, number: signal.Signals, code: int, children: list[str]
) -> None:
    options = [word for child in children for word in (child, host.prefix)]
    with host.running(*SMALL, "--", "--never-ready", *options) as process:
        assert eventually(lambda: len(host.shared_memory()) == len(children)), host.processes()
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, said
        assert eventually(host.is_clean), (host.processes(), host.shared_memory())


def test_a_comparison_that_is_interrupted_twice_leaves_nothing(host: Host) -> None:
    """`timeout` sends SIGTERM to the command and then to its group."""
    with host.running(*SMALL, "--", "--never-ready", "--orderly", host.prefix, "--slow-end", host.prefix) as process:
        assert eventually(lambda: len(host.shared_memory()) == 1), host.processes()
        process.terminate()
        assert eventually(lambda: len(host.shared_memory()) == 2), host.shared_memory()
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 143, said
        assert eventually(host.is_clean), (host.processes(), host.shared_memory())


def test_a_comparison_that_is_killed_leaves_files_only(host: Host) -> None:
    with host.running(*SMALL, "--rounds", "500") as process:
        assert eventually(lambda: {"pagetierd", "fake_vllm_serve.py"} <= host.programs()), host.programs()
        process.kill()
        process.wait()
        assert eventually(lambda: not host.processes() and not orphaned_segments()), host.programs()
    for folder in host.temporary.iterdir():
        shutil.rmtree(folder)


def test_an_engine_that_does_not_attach_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_daemon, "_ATTACH_S", 0.2)
    command = ["sh", "-c", "echo PAGETIER=1 has no effect: it is out of order; exec sleep 3600"]
    with (
        running_daemon(tmp_path, 64 * MIB, MIB) as daemon,
        Program(command, own_environment(), tmp_path / "log", signal.SIGTERM, PATIENCE_S) as engine,
    ):
        assert eventually(lambda: bool(engine.log_text))
        with pytest.raises(BenchmarkError, match=r"(?s)without pagetier:.*it is out of order"):
            daemon.wait_for_engine(engine)


def test_a_program_heeds_ctrl_c_also_in_the_background_of_a_shell(tmp_path: Path) -> None:
    heeded = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Program(["sleep", "600"], own_environment(), tmp_path / "log", signal.SIGINT, PATIENCE_S) as program:
            assert eventually(lambda: arguments_of(program.pid)[:1] == ["sleep"])
            assert program.stop(), "it had to be killed"
    finally:
        signal.signal(signal.SIGINT, heeded)


def test_the_memory_of_a_program_includes_what_its_children_have(tmp_path: Path) -> None:
    one = "held = bytes(range(256)) * (1 << 18); print('ready', flush=True); import time; time.sleep(600)"
    command = ["sh", "-c", f'"{sys.executable}" -c "{one}" & "{sys.executable}" -c "{one}" & wait']
    with Program(command, own_environment(), tmp_path / "log", signal.SIGTERM, PATIENCE_S) as program:
        program.wait_until(lambda: program.log_text.count("ready") == 2, PATIENCE_S)
        assert 128 * MIB < session_bytes(program.pid, "none") < 200 * MIB


def test_the_arena_is_a_third_of_the_memory_and_fits_shared_memory() -> None:
    assert arena_size(None, 3000 * MIB, 9000 * MIB) == 1000 * MIB
    assert arena_size(None, 3000 * MIB, 500 * MIB) == 450 * MIB
    assert arena_size(700 * MIB, 3000 * MIB, 9000 * MIB) == 700 * MIB
    with pytest.raises(BenchmarkError, match="too small"):
        arena_size(None, 100 * MIB, 9000 * MIB)


def test_files_are_where_paths_of_sockets_are_short_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """vLLM's sockets could not be opened below a long TMPDIR."""
    long = tmp_path / "a-long-name-of-a-folder-for-temporary-files"
    long.mkdir()
    for usual, used in ((Path("/var/tmp"), Path("/var/tmp")), (long, Path("/tmp"))):
        monkeypatch.setattr(tempfile, "tempdir", str(usual))
        assert place() == used
