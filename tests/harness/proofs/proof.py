"""A proof: what it runs, the files that it depends on, and their digest."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from proofs.inputs import digest_of, inputs_of
from proofs.shard import ROOT, Shard

_SELECTION: Final = "tests/harness/proofs/selection.py"


class Proof(Struct, frozen=True):
    """What is proven, and by what.

    Attributes:
        name: The name of its lock.
        inputs: The files and folders of the product, and of what it runs, as in `inputs_of`.
        shards: Returns its shards.
        tests: Files and folders of pytest that belong to it and not to `make test`.
    """

    name: str
    inputs: tuple[str, ...]
    shards: Callable[[], list[Shard]]
    tests: tuple[str, ...] = ()

    def files(self) -> list[str]:
        """Returns the paths of its inputs. Those of tests include what chooses the tests of a shard."""
        return inputs_of((*self.inputs, _SELECTION) if self.tests else self.inputs, self.tests)

    def digest(self) -> str:
        """Returns the digest that its lock must have: of its inputs, its commands, and the options of pytest."""
        commands = [(shard.name, [word.replace(f"{ROOT}/", "") for word in shard.command]) for shard in self.shards()]
        declared = (self.inputs, self.tests, commands, pytest_options() if self.tests else {})
        return digest_of(self.files(), msgspec.json.encode(declared))


def pytest_options(file: Path = ROOT / "pyproject.toml") -> dict[str, object]:
    """Returns the options of pytest, the one section of this file on which the result of a test depends."""
    options: dict[str, object] = tomllib.loads(file.read_text())["tool"]["pytest"]
    return options
