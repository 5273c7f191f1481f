"""Lets spin explore every state of the models in this folder and refute all their mutants.

usage: check_models.py [--list] [MODEL | MODEL/VARIANT]...

A model is a file NAME.pml. `#ifdef CASE_x` in it defines another setting in which it is explored. A macro MUTANT_x is
0, or 1 for a mistake that spin must find in one of the settings. Each setting and each mutant is a variant: pin/holds,
adoption/CASE_halves, pin/MUTANT_no_pin. `--list` prints all of them. Prints one line for each, and a line `proof: ...`
that is the same on every machine; the exit status is 1 if a model has an error, was not explored completely, or if a
mutant survives. Needs spin and gcc.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copytree, which

from msgspec import Struct

HERE = Path(__file__).parent
LONGEST_PATH = 2_000_000
HOLDS = "holds"  # the name of the setting without a case
# An optimized search takes less time, but the compiler takes more than that.
COMPILE = ["gcc", "-w", "-O0", "-DSAFETY", "-DMEMLIM=6000", "-o", "pan", "pan.c"]
RUN = ["./pan", f"-m{LONGEST_PATH}", "-w22", "-n"]
INCOMPLETE = ("search depth too small", "memory exhausted", "reached -DMEMLIM", "out of memory")


class Model(Struct, frozen=True):
    """One file: the settings in which it must hold, and the mistakes that must be found."""

    path: Path
    cases: tuple[str, ...]
    mutants: tuple[str, ...]

    @property
    def name(self) -> str:
        """The path below this folder, without the suffix."""
        return str(self.path.relative_to(HERE).with_suffix(""))


class Verdict(Struct, frozen=True):
    """The result of one variant of a model."""

    errors: str  # the first one; "" if there is none
    states: int


class ModelError(Exception):
    """A model that spin or the compiler rejects, or that spin could not explore completely."""


def models() -> list[Model]:
    """Returns all models, by name."""
    return [read_model(path) for path in sorted(HERE.rglob("*.pml")) if "\ninit" in path.read_text()]


def read_model(path: Path) -> Model:
    """Reads the cases and mutants of a file."""
    text = path.read_text()
    return Model(path, ("", *unique("CASE_", text)), unique("MUTANT_", text))


def unique(prefix: str, text: str) -> tuple[str, ...]:
    """Returns the macros with this prefix, in their order in the text."""
    return tuple(dict.fromkeys(re.findall(rf"\b{prefix}\w+", text)))


def check_variant(model: Model, case: str, mutant: str = "") -> Verdict:
    """Explores all states of a variant, up to the first error.

    Args:
        model: The model.
        case: One of its cases.
        mutant: One of its mutants, if any.

    Returns:
        The result of the search.

    Raises:
        ModelError: The model has a syntax error, or the search was not complete.
    """
    with tempfile.TemporaryDirectory(prefix="pagetier-models-") as folder:
        copy = Path(copytree(HERE, folder, dirs_exist_ok=True)) / model.path.parent.relative_to(HERE)
        macros = [f"-D{name}={int(name == mutant)}" for name in model.mutants] + [f"-D{case}"] * bool(case)
        said = run(["spin", *macros, "-a", model.path.name], copy)
        if re.search(r"\berror\b", said, re.IGNORECASE) or not (copy / "pan.c").exists():
            raise ModelError(f"{model.name}: {said[:500]}")
        run(COMPILE, copy)
        return verdict(run(RUN, copy))


def run(command: list[str], folder: Path) -> str:
    """Returns the output of a command. A command that fails prints why; its missing result is noticed later."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def verdict(said: str) -> Verdict:
    """Reads spin's report. Raises ModelError if the search is incomplete."""
    error = re.search(r"^pan:\d+: (.*)$", said, re.MULTILINE)
    states = re.search(r"^\s*(\d+) states, stored", said, re.MULTILINE)
    if error and not any(words in error[1] for words in INCOMPLETE):
        return Verdict(error[1][:80], int(states[1]) if states else 0)
    if not states or "errors: 0" not in said or any(words in said for words in INCOMPLETE):
        raise ModelError(f"not complete: {said[:500]}")
    return Verdict("", int(states[1]))


def variants(model: Model) -> list[str]:
    """Returns the names of all settings and mutants of a model."""
    return [f"{model.name}/{one}" for one in (HOLDS, *model.cases[1:], *model.mutants)]


def check(model: Model, variant: str) -> str:
    """Checks one setting or one mutant of a model and prints its lines. Returns the error, or ""."""
    if variant in model.mutants:
        return refute(model, variant)
    got = check_variant(model, variant if variant != HOLDS else "")
    title = f"{model.name} {variant.removeprefix('CASE_').replace('_', ' ')}"
    say("model", title, f"{got.states:>9,} states, {got.errors or 'no error'}")
    return f"{title}: {got.errors}" if got.errors else ""


def refute(model: Model, mutant: str) -> str:
    """Returns an error if no case of the model shows the mistake."""
    title = f"{model.name}: {mutant.removeprefix('MUTANT_').replace('_', ' ')}"
    for case in model.cases:
        got = check_variant(model, case, mutant)
        if got.errors:
            say("mutant", title, f"refuted: {got.errors}")
            return ""
    return f"{title}: SURVIVED"


def say(kind: str, title: str, result: str) -> None:
    """Prints the two lines of a variant."""
    sys.stdout.write(f"{kind:<7} {title:<58} {result}\n")
    sys.stdout.write(f"proof: {kind} {title}: {result.strip()}\n")
    sys.stdout.flush()


def chosen(names: list[str]) -> list[tuple[Model, str]]:
    """Returns the variants with these names, or of the models with these names, or all."""
    every = [(model, variant) for model in models() for variant in variants(model)]
    wanted = [one for one in every if not names or not {one[0].name, one[1]}.isdisjoint(names)]
    return [(model, variant.removeprefix(f"{model.name}/")) for model, variant in wanted]


def main(arguments: list[str]) -> int:
    """Checks the variants that are named, or lists them. Returns the exit status."""
    names = [name for name in arguments if name != "--list"]
    if "--list" in arguments:
        sys.stdout.writelines(f"{model.name}/{variant}\n" for model, variant in chosen(names))
        return 0
    if not which("spin") or not which("gcc"):
        sys.stdout.write("proof: skipped: spin or gcc is missing\n")
        return 0
    tried = [check(model, variant) for model, variant in chosen(names)]
    for error in filter(None, tried):
        sys.stdout.write(f"ERROR   {error}\n")
    return 1 if any(tried) or not tried else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
