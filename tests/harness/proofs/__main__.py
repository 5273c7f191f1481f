"""The commands behind `make prove`, `make lint` and the gate: python -m proofs check | renew | sample | list."""

from __future__ import annotations

import os
import subprocess
import sys

import click

from proofs.catalog import PROOFS, Proof
from proofs.lock import Lock, read_lock
from proofs.progress import one_run_at_a_time
from proofs.renew import renew, say
from proofs.sample import chosen, try_sample
from proofs.shard import ROOT

_NAMES = [proof.name for proof in PROOFS]


@click.group()
def main() -> None:
    """Checks, renews and samples the locks of the proofs in tests/proofs."""


@main.command()
def check() -> None:
    """Name the proofs whose lock is stale, and the command that renews it."""
    stale = [(proof.name, why) for proof in PROOFS if (why := why_stale(proof, read_lock(proof.name)))]
    for name, why in stale:
        click.echo(f"proof {name} is stale ({why}): make prove NAME={name}")
    sys.exit(1 if stale else 0)


@main.command("renew")
@click.option("--jobs", default=os.cpu_count() or 1, help="How many shards run at a time.")
@click.option("--all", "everything", is_flag=True, help="Renew the locks that are not stale, too.")
@click.argument("names", nargs=-1, type=click.Choice(_NAMES))
def renew_locks(jobs: int, everything: bool, names: tuple[str, ...]) -> None:
    """Run the stale proofs, or those with these NAMES, and write their locks."""
    with one_run_at_a_time(say):
        every = [proof for proof in PROOFS if not names or proof.name in names]
        wanted = [proof for proof in every if names or everything or why_stale(proof, read_lock(proof.name))]
        failed = renew(wanted, jobs)
    for name in failed:
        click.echo(f"proof {name} did not hold: its lock was not written. What held is kept: make prove NAME={name}")
    click.echo(f"{len(wanted) - len(failed)} proofs held, {len(failed)} did not")
    sys.exit(1 if failed else 0)


@main.command()
@click.option("--jobs", default=os.cpu_count() or 1, help="How many shards run at a time.")
@click.option("--seconds", default=300.0, help="No shard begins after this time.")
def sample(jobs: int, seconds: float) -> None:
    """Run some shards again, chosen by the commit, and compare them with the locks."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    locks = {proof.name: lock for proof in PROOFS if (lock := read_lock(proof.name))}
    present = [proof for proof in PROOFS if proof.name in locks]
    differences = 0
    with one_run_at_a_time(say):
        for line in try_sample(chosen(present, locks, head.strip()), jobs, seconds):
            differences += line.startswith("DIFFERS")
            say(line)
    sys.exit(1 if differences else 0)


@main.command("list")
def list_proofs() -> None:
    """Print a line for each proof: shards, minutes, runs, commit."""
    for proof in PROOFS:
        lock = read_lock(proof.name)
        result = f"{lock.seconds / 60:5.1f} min  {lock.runs:3} runs  {lock.commit}" if lock else "never held"
        click.echo(f"{proof.name:<20} {len(proof.shards()):4} shards  {result}")


def why_stale(proof: Proof, lock: Lock | None) -> str:
    """Returns why a proof must be run again, or "" if its lock is right."""
    if lock is None:
        return "it has no lock"
    if lock.inputs != proof.digest():
        return f"its inputs were changed since {lock.commit}"
    missing = [shard.name for shard in proof.shards() if shard.name not in lock.shards]
    return f"its lock lacks {missing[0]}" if missing else ""


if __name__ == "__main__":
    main()
