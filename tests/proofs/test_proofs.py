"""Tests the locks of proofs: stale ones are named, interrupted runs continue, and locks written by hand are found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec
import pytest
from click.testing import CliRunner

from proofs.__main__ import CORE, main, why_stale
from proofs.catalog import PROOFS
from proofs.inputs import UnknownInputError, digest_of, helpers_of, inputs_of
from proofs.lock import LOCKS, Lock, Record, orphaned_locks, read_lock, seed_of, write_lock, written_after
from proofs.progress import begin_whole_run, end_whole_run, one_run_at_a_time
from proofs.proof import Proof, pytest_options
from proofs.renew import Renewal, run_all
from proofs.sample import chosen, relabelled_locks, try_sample
from proofs.shard import ROOT, Shard, run

MINUTE_S: Final = 60
INPUT: Final = "tests/proofs/README.md"


def saying(name: str, line: str, code: int = 0) -> Shard:
    return Shard(name, ("sh", "-c", f'echo other; echo "proof: {line}"; exit {code}'))


def failing_without(file: Path, name: str, line: str) -> Shard:
    return Shard(name, ("sh", "-c", f'test -e {file} && echo "proof: {line}"'))


def proof_of(*shards: Shard) -> Proof:
    return Proof("small", (INPUT,), lambda: list(shards))


def renewed(folder: Path, *shards: Shard) -> tuple[Renewal, bool]:
    """Runs the shards that have not held yet, and returns whether the lock was written."""
    renewal = Renewal(proof_of(*shards), lambda line: None, folder, folder / "build")
    for shard in renewal.waiting():
        renewal.try_one(shard)
    return renewal, renewal.finish()


def lock_of(folder: Path) -> Lock:
    lock = read_lock("small", folder)
    assert lock is not None
    return lock


def labelled(lock: Lock, inputs: str) -> Lock:
    """Returns the lock with the digest of other inputs, and the seed that belongs to them."""
    return msgspec.structs.replace(lock, inputs=inputs, seed=seed_of(inputs))


def sampled(folder: Path, *shards: Shard) -> list[str]:
    return list(try_sample(chosen([proof_of(*shards)], {"small": lock_of(folder)}, "a commit"), 2, MINUTE_S))


def test_a_digest_follows_contents_names_and_declaration(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    digests = {digest_of([], b"declared"), digest_of([str(file)], b"declared"), digest_of([str(file)], b"other")}
    file.write_text("two")
    digests.add(digest_of([str(file)], b"declared"))
    digests.add(digest_of([str(file.rename(tmp_path / "renamed"))], b"declared"))
    assert len(digests) == 5


def test_inputs_are_files_folders_without_exceptions_and_helpers() -> None:
    found = inputs_of(["shm/core/common/", "!shm/core/common/layout.h", "setup.py"], ["tests/crash/power_loss"])
    assert {"setup.py", "tests/harness/store_pages.py", "tests/crash/power_loss/runs.py"} <= set(found)
    assert any(name.startswith("shm/core/common/") for name in found) and "shm/core/common/layout.h" not in found
    assert "tests/harness/running_daemon.py" in helpers_of(["tests/crash/power_loss/test_power_loss.py"])


def test_programs_data_and_includes_that_a_test_uses_are_inputs() -> None:
    beside = {"failpoints_on.py", "fork_server.py", "inject.c", "injector.h", "crossings.txt"}
    found = set(inputs_of([], ["tests/crash/injection/test_failpoints.py"]))
    assert {f"tests/crash/injection/{name}" for name in beside} < found
    assert {"tests/conftest.py", "tests/harness/own_host.py"} < found
    assert "tests/crash/injection/test_kernel.py" not in found
    other = helpers_of(["tests/crash/power_loss/test_power_loss.py"])
    assert "tests/crash/injection/injector.h" in other and "tests/crash/injection/crossings.txt" not in other


def test_an_input_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownInputError, match="no_such_room"):
        inputs_of(["no_such_room/"], [])


def test_a_proof_whose_inputs_were_changed_is_stale(tmp_path: Path) -> None:
    shard = saying("one", "7 states")
    assert "no lock" in why_stale(proof_of(shard), read_lock("small", tmp_path))
    renewed(tmp_path, shard)
    lock = lock_of(tmp_path)
    assert not why_stale(proof_of(shard), lock)
    assert "changed since" in why_stale(proof_of(shard), msgspec.structs.replace(lock, inputs="others"))
    both = proof_of(shard, saying("two", "8 states"))
    assert "no result of two" in why_stale(both, labelled(lock, both.digest()))
    empty = msgspec.structs.replace(lock, shards={"one": Record(1, ("skipped: spin is missing",))})
    assert "no result of one" in why_stale(proof_of(shard), empty)


def test_a_digest_follows_the_commands_but_not_the_folder_of_the_clone() -> None:
    digests = {proof_of(Shard("one", command)).digest() for command in [("true",), ("false",), (f"{ROOT}/true",)]}
    assert len(digests) == 2


def test_what_chooses_the_tests_of_a_shard_is_an_input_of_proofs_of_tests(tmp_path: Path) -> None:
    of_tests = {proof.name for proof in PROOFS if "tests/harness/proofs/selection.py" in proof.files()}
    assert of_tests == {proof.name for proof in PROOFS if proof.tests} and "models" not in of_tests
    changed = tmp_path / "pyproject.toml"
    changed.write_text('[project]\nname = "other"\n[tool.pytest.ini_options]\naddopts = ["-x"]\n')
    assert pytest_options(changed) == {"ini_options": {"addopts": ["-x"]}} != pytest_options()


def test_all_machines_list_the_same_shards() -> None:
    """A machine without a compiler or a Python that can be linked would call the locks of others stale."""
    for folder, lacking in (("fuzz", ("CLANG=false", "PYTHON=")), ("stress", ("steps=",))):
        listed = [
            subprocess.run(
                ["make", "-s", "-C", f"tests/shm/{folder}", "targets", *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for words in ((), *((word,) for word in lacking))
        ]
        assert len(set(listed)) == 1 and len(listed[0].splitlines()) > 10


def test_a_lock_that_only_has_the_label_of_other_inputs_is_found(tmp_path: Path) -> None:
    shard = Shard("one", ("sh", "-c", "echo proof: seed $SEED"))
    renewed(tmp_path, shard)
    lock = lock_of(tmp_path)
    assert not list(relabelled_locks({"small": lock})) and sampled(tmp_path, shard)[0].startswith("same")
    other = msgspec.structs.replace(lock, inputs="others")
    assert next(relabelled_locks({"small": other})).startswith("DIFFERS small: its seed is")
    proof = proof_of(shard)
    assert "its seed is" in why_stale(proof, msgspec.structs.replace(lock, seed=lock.seed + 1))
    write_lock("small", labelled(lock, "others"), tmp_path)
    assert sampled(tmp_path, shard)[0].startswith("DIFFERS small one"), "its lines are of other numbers"


def test_every_file_of_tests_with_vllm_is_in_one_proof_of_engines() -> None:
    inputs = {proof.name: set(proof.files()) for proof in PROOFS if proof.name.startswith("engines-vllm")}
    tests = [name for proof in PROOFS if proof.name in inputs for name in proof.tests]
    assert len(tests) == len(set(tests)) and {"tests/engines/test_fleet.py", "tests/engines/test_hints.py"} <= set(
        tests
    )
    alone, several = inputs["engines-vllm"], inputs["engines-vllm-several"]
    assert "client/engines/fleet_reads.py" in several - alone and "client/engines/request_hints.py" in alone - several
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "client" / "engines" / "vllm").glob("*.py")}
    assert modules <= alone | several


def test_a_lock_of_no_proof_is_named(tmp_path: Path) -> None:
    renewed(tmp_path, saying("one", "7 states"))
    assert orphaned_locks(["small"], tmp_path) == []
    assert orphaned_locks(["renamed"], tmp_path) == [tmp_path / "small.json"]


def test_a_lock_keeps_what_each_shard_said_and_counts_runs(tmp_path: Path) -> None:
    shards = [saying("one", "7 states"), Shard("two", ("sh", "-c", "echo proof: seed $SEED $TEST_SEED $SWEEP_SEED"))]
    renewed(tmp_path, *shards)
    first = lock_of(tmp_path)
    assert first.shards["one"].summary == ("7 states",)
    assert first.shards["two"].summary == (f"seed {first.seed} {first.seed} {first.seed}",)
    assert first.seed == seed_of(first.inputs) != seed_of("others")
    renewed(tmp_path, *shards)
    assert (first.runs, lock_of(tmp_path).runs) == (1, 2)


def test_a_run_that_failed_continues_with_what_did_not_hold(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    once = Shard("once", ("sh", "-c", f"echo ran >> {ran}; echo proof: held"))
    two = failing_without(tmp_path / "mended", "two", "8 states")
    failed, written = renewed(tmp_path, once, two)
    assert (failed.failed, written, read_lock("small", tmp_path)) == (["two"], False, None)
    (tmp_path / "mended").touch()
    assert renewed(tmp_path, once, two)[1]
    assert ran.read_text() == "ran\n"


def test_an_interruption_starts_no_further_shard(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    shards = [Shard(str(number), ("sh", "-c", f"echo {number} >> {ran}; echo proof: held")) for number in range(200)]

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all({"small": Renewal(proof_of(*shards), interrupt, tmp_path, tmp_path / "build")}, 1)
    assert 1 <= len(ran.read_text().splitlines()) < 200


def test_a_run_that_was_killed_while_it_wrote_continues(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    once = Shard("once", ("sh", "-c", f"echo ran >> {ran}; echo proof: held"))
    two = failing_without(tmp_path / "mended", "two", "8 states")
    renewed(tmp_path, once, two)
    (progress,) = (tmp_path / "build" / "small").iterdir()
    progress.write_text(progress.read_text() + '{"shard": "tw')
    (tmp_path / "mended").touch()
    assert renewed(tmp_path, once, two)[1] and ran.read_text() == "ran\n"


def test_an_interrupted_run_of_all_proofs_continues_with_those_that_it_has_not_run(tmp_path: Path) -> None:
    renewed(tmp_path, saying("one", "7 states"))
    lock = tmp_path / "small.json"
    os.utime(lock, (1, 1))
    began = begin_whole_run(tmp_path)
    assert not written_after("small", began, tmp_path) and begin_whole_run(tmp_path) == began
    os.utime(lock, (began + 1, began + 1))
    assert written_after("small", began, tmp_path)
    os.utime(tmp_path / "all", (1, 1))
    end_whole_run(tmp_path)
    assert begin_whole_run(tmp_path) > 1


def test_inputs_that_change_while_a_proof_runs_write_no_lock(tmp_path: Path) -> None:
    new = ROOT / "tests" / "proofs" / f"{tmp_path.name}.txt"
    lines: list[str] = []
    renewal = Renewal(Proof("small", ("tests/proofs/",), list), lines.append, tmp_path, tmp_path / "build")
    new.touch()
    try:
        assert not renewal.finish() and "changed while it ran" in lines[0]
    finally:
        new.unlink()


def test_two_runs_wait_for_each_other(tmp_path: Path) -> None:
    lines: list[str] = []
    both = threading.Barrier(2)

    def say(line: str) -> None:
        lines.append(line)
        both.wait(MINUTE_S)

    def second() -> None:
        with one_run_at_a_time(say, tmp_path):
            lines.append("second")

    other = threading.Thread(target=second)
    with one_run_at_a_time(say, tmp_path):
        other.start()
        both.wait(MINUTE_S)
        lines.append("first")
    other.join(MINUTE_S)
    assert "waiting" in lines[0] and lines[1:] == ["first", "second"]


def test_a_shard_sees_no_variable_that_selects_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_ADDOPTS", "MAKEFLAGS", "SECONDS", "SWEEP"):
        monkeypatch.setenv(name, "1")
    printed = run(Shard("one", ("sh", "-c", 'echo "proof: $PYTEST_ADDOPTS$MAKEFLAGS$SECONDS$SWEEP."')), 1)
    assert printed.summary == (".",)


def test_a_shard_whose_program_is_missing_does_not_hold(tmp_path: Path) -> None:
    renewal, written = renewed(tmp_path, Shard("one", (".engines/none/bin/python",)), saying("two", "8 states"))
    assert (renewal.failed, written) == (["one"], False)


@pytest.mark.parametrize("line", ["skipped: spin is missing", ""])
def test_a_shard_that_tried_nothing_does_not_hold(tmp_path: Path, line: str) -> None:
    shard = saying("one", line) if line else Shard("one", ("true",))
    assert renewed(tmp_path, shard)[0].failed == ["one"]


def test_a_sample_agrees_with_a_lock_that_was_run(tmp_path: Path) -> None:
    shards = [saying("one", "7 states"), saying("two", "8 states")]
    renewed(tmp_path, *shards)
    assert [line.split()[0] for line in sampled(tmp_path, *shards)] == ["same", "same"]


@pytest.mark.parametrize("now", [saying("one", "6 states"), saying("one", "7 states", code=1), Shard("one", ("true",))])
def test_a_lock_that_was_written_by_hand_is_found(tmp_path: Path, now: Shard) -> None:
    renewed(tmp_path, saying("one", "7 states"))
    (line,) = sampled(tmp_path, now)
    assert line.startswith("DIFFERS small one")


def test_a_machine_without_a_tool_says_nothing_about_its_shards(tmp_path: Path) -> None:
    renewed(tmp_path, saying("one", "7 states"))
    assert sampled(tmp_path, saying("one", "skipped: spin is missing"))[0].startswith("untried small one")


def test_a_machine_without_an_environment_cannot_try_its_shards(tmp_path: Path) -> None:
    environment = ROOT / ".engines" / f"test-{tmp_path.name}"
    shard = msgspec.structs.replace(saying("one", "7 states"), environment=environment.name)
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    try:
        python.touch()
        assert renewed(tmp_path, shard)[1] and sampled(tmp_path, shard)[0].startswith("same    small one")
    finally:
        shutil.rmtree(environment)
    (line,) = sampled(tmp_path, shard)
    assert line.startswith("untried small one") and line.endswith(f"the environment {environment.name} is missing")
    assert renewed(tmp_path, shard)[0].failed == ["one"]


def test_make_prove_makes_the_environments_that_the_gate_does_not_make() -> None:
    further = {shard.environment for proof in PROOFS for shard in proof.shards()} - {""}
    assert further and further.isdisjoint(_environments_of("environments"))
    assert further <= _environments_of("clean-environments"), "it would remove them"
    assert further <= set(_printed("environments", "--all"))
    assert _printed("environments", "engines-older") == ["0.28", "0.30"] and not _printed("environments", "models")
    assert "$(PROOFS) environments" in (ROOT / "Makefile").read_text()


def _environments_of(target: str) -> set[str]:
    """Returns the words of the first command of a target of the Makefile."""
    command = ["make", "-n", "--no-print-directory", target, "ALL="]
    return set(
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")[0].split()
    )


def _printed(*words: str) -> list[str]:
    return CliRunner().invoke(main, words, catch_exceptions=False).output.split()


def test_commits_choose_other_shards_and_no_long_one() -> None:
    shards = [saying(str(number), "") for number in range(20)]
    records = {shard.name: Record(MINUTE_S + float(shard.name == "7"), ()) for shard in shards}
    lock = Lock("", "", 1, 1, 1, records)
    firsts = {chosen([proof_of(*shards)], {"small": lock}, str(commit))[0].shard.name for commit in range(20)}
    assert len(firsts) > 5 and "7" not in firsts


def test_a_sample_leaves_out_what_would_end_too_late() -> None:
    records = {"one": Record(MINUTE_S, ("7 states",)), "two": Record(1, ("8 states",))}
    proof = proof_of(saying("one", "7 states"), saying("two", "8 states"))
    found = chosen([proof], {"small": Lock("", "", 1, 1, 1, records)}, "a commit")
    (line,) = try_sample(found, 1, MINUTE_S / 2)
    assert len(found) == 2 and line.startswith("same    small two")


def test_make_lint_and_the_gate_run_the_commands() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "$(PROOFS) check" in makefile and "$(PROOFS) sample" in makefile
    assert "make check-proofs" in (ROOT / ".ci" / "run").read_text()


def test_every_lock_belongs_to_a_proof_and_can_be_read() -> None:
    locks = {path.stem: read_lock(path.stem) for path in LOCKS.glob("*.json")}
    assert set(locks) == {proof.name for proof in PROOFS}
    assert None not in locks.values()


def test_the_list_adds_up_the_minutes_of_all_proofs_and_of_the_core() -> None:
    listed = CliRunner().invoke(main, ["list"], catch_exceptions=False).output
    minutes = {proof.name: lock.seconds / MINUTE_S for proof in PROOFS if (lock := read_lock(proof.name))}
    of_core = [proof.name for proof in PROOFS if CORE in inputs_of(proof.inputs, proof.tests)]
    assert {"stress", "failpoints"} <= set(of_core) and "power-loss" not in of_core
    assert f"all: {sum(minutes.values()):.1f} min" in listed
    assert f"a change of {CORE}: {sum(minutes[name] for name in of_core):.1f} min" in listed


def test_shards_of_tests_are_disjoint_and_together_all() -> None:
    collected = [set(_collected(f"--shard={number}/2")) for number in (1, 2)]
    every = set(_collected())
    assert set.union(*collected) == every and sum(map(len, collected)) == len(every) > 3


def test_a_shard_refuses_another_selection() -> None:
    command = [sys.executable, "-m", "pytest", "tests/crash/oracle_tests", "--shard=1/1", "-k", "journal"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR and "leave out -k" in refused.stderr


def _collected(*options: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/crash/oracle_tests", *options]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line for line in output.split("\n") if "::" in line]
