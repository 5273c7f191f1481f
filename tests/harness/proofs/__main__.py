"""The commands behind `make prove`, `make lint` and the gate: python -m proofs check | renew | sample | list."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Final

import click

from proofs.catalog import PROOFS
from proofs.inputs import UnknownInputError
from proofs.lock import Lock, held, orphaned_locks, read_lock, relabelled, written_after
from proofs.progress import begin_whole_run, end_whole_run, one_run_at_a_time
from proofs.proof import Proof
from proofs.renew import renew, say
from proofs.sample import chosen, relabelled_locks, try_sample
from proofs.shard import ROOT

CORE: Final = "shm/core/common/layout.h"
"""A file on which every proof of the core depends."""
_NAMES: Final = [proof.name for proof in PROOFS]
_CORES = len(os.sched_getaffinity(0))


@click.group()
@click.pass_context
def main(context: click.Context) -> None:
    """Checks, renews and samples the locks of the proofs in tests/proofs."""
    context.with_resource(_errors_in_a_line())


@contextlib.contextmanager
def _errors_in_a_line() -> Iterator[None]:
    """Says why the inputs of a proof are not known: no git, or a name in the catalog that is no file."""
    try:
        yield
    except UnknownInputError as error:
        raise click.ClickException(f"{error}, but the catalog in tests/harness/proofs names it") from error
    except subprocess.CalledProcessError as error:
        raise click.ClickException(f"`{shlex.join(error.cmd)}` failed: {error.stderr.strip()}") from error


@main.command()
def check() -> None:
    """Name the proofs whose lock is stale, and the command that renews it."""
    stale = [(proof.name, why) for proof in PROOFS if (why := why_stale(proof, read_lock(proof.name)))]
    orphans = orphaned_locks(_NAMES)
    for name, why in stale:
        say(f"proof {name} is stale ({why}): make prove NAME={name}")
    for path in orphans:
        say(f"{path.relative_to(ROOT)} is the lock of no proof: remove it")
    sys.exit(1 if stale or orphans else 0)


@main.command("renew")
@click.option("--jobs", default=_CORES, help="How many shards run at a time.")
@click.option(
    "--all", "everything", is_flag=True, help="Renew the locks that are not stale, too, or continue with that."
)
@click.argument("names", nargs=-1, type=click.Choice(_NAMES))
def renew_locks(jobs: int, everything: bool, names: tuple[str, ...]) -> None:
    """Run the stale proofs, or those with these NAMES, and write their locks."""
    with one_run_at_a_time(say):
        everything = everything and not names
        began = begin_whole_run() if everything else 0.0
        wanted = [proof for proof in PROOFS if proof.name in names or (not names and _wanted(proof, began))]
        failed = renew(wanted, jobs)
        if everything and not failed:
            end_whole_run()
    for name in failed:
        click.echo(f"proof {name} did not hold: its lock was not written. What held is kept: make prove NAME={name}")
    click.echo(f"{len(wanted) - len(failed)} proofs held, {len(failed)} did not")
    sys.exit(1 if failed else 0)


@main.command()
@click.option("--jobs", default=_CORES, help="How many shards run at a time.")
@click.option("--seconds", default=300.0, help="When the sample ends, by the times in the locks.")
def sample(jobs: int, seconds: float) -> None:
    """Run some shards again, chosen by the commit, and compare them with the locks."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    locks = {proof.name: lock for proof in PROOFS if (lock := read_lock(proof.name))}
    present = [proof for proof in PROOFS if proof.name in locks]
    differences = 0
    with one_run_at_a_time(say):
        tried = try_sample(chosen(present, locks, head.strip()), jobs, seconds)
        for line in chain(relabelled_locks(locks), tried):
            differences += line.startswith("DIFFERS")
            say(line)
    sys.exit(1 if differences else 0)


@main.command()
@click.option("--all", "everything", is_flag=True, help="For all proofs.")
@click.argument("names", nargs=-1, type=click.Choice(_NAMES))
def environments(everything: bool, names: tuple[str, ...]) -> None:
    """Print the environments that the gate does not make, and that the stale proofs or those with these NAMES need."""
    wanted = [proof for proof in PROOFS if everything or proof.name in names or (not names and _stale(proof))]
    needed = {shard.environment for proof in wanted for shard in proof.shards()}
    say(" ".join(sorted(needed - {""})))


@main.command("list")
def list_proofs() -> None:
    """Print a line for each proof: shards, minutes of one core, runs, commit; and the sums, which have limits."""
    minutes = {proof: lock.seconds / 60 for proof in PROOFS if (lock := read_lock(proof.name))}
    for proof in PROOFS:
        lock = read_lock(proof.name)
        result = f"{lock.seconds / 60:5.1f} min  {lock.runs:3} runs  {lock.commit}" if lock else "never held"
        click.echo(f"{proof.name:<20} {len(proof.shards()):4} shards  {result}")
    of_core = [proof for proof in minutes if CORE in proof.files()]
    click.echo(f"all: {sum(minutes.values()):.1f} min")
    click.echo(f"a change of {CORE}: {sum(minutes[proof] for proof in of_core):.1f} min")


def why_stale(proof: Proof, lock: Lock | None) -> str:
    """Returns why a proof must be run again, or "" if its lock is right."""
    if lock is None:
        return "it has no lock"
    if lock.inputs != proof.digest():
        return f"its inputs were changed since {lock.commit}"
    if why := relabelled(lock):
        return why
    lacking = [shard.name for shard in proof.shards() if not held(lock.shards.get(shard.name))]
    return f"its lock has no result of {lacking[0]}" if lacking else ""


def _stale(proof: Proof) -> bool:
    return bool(why_stale(proof, read_lock(proof.name)))


def _wanted(proof: Proof, began: float) -> bool:
    """Returns whether a proof is stale, or was not run since all proofs began to be run."""
    return _stale(proof) or not written_after(proof.name, began)


if __name__ == "__main__":
    main()
