"""The table of the failpoints to sweep in each operation: crossings.txt.

`python -m injection.failpoint_table` in tests/crash writes it again after failpoints were added.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from inspect import isabstract
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

from injection import disk_operations, fleet_operations, lifecycle_operations, memory_operations
from injection.forked_processes import Stage, stage
from injection.injector import POINTS, Action, Case, Role
from injection.instrumented_build import ROOT
from injection.operation import Operation
from injection.scene import InjectionScene
from injection.sweep import EVERYTHING, record

TABLE: Final = Path(__file__).with_name("crossings.txt")
Table: TypeAlias = dict[str, dict[Role, list[str]]]
_ROOMS: Final = ("shm", "tiers", "client", "daemon")
_LEAST: Final = 2
_POINT: Final = re.compile(r'^\s*(?:PT_POINT|point)\("([\w.]+)"\)', re.MULTILINE)


def operations_in(module: ModuleType) -> list[type[Operation]]:
    """Returns the operations that a module defines, in their order."""
    defined = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    return [one for one in defined if issubclass(one, Operation) and not isabstract(one)]


OPERATIONS: Final = [
    kind
    for module in (memory_operations, disk_operations, fleet_operations, lifecycle_operations)
    for kind in operations_in(module)
]


def points_in_sources() -> set[str]:
    """Returns all failpoints that the sources name."""
    sources = [path for room in _ROOMS for path in (ROOT / room).rglob("*.*") if path.suffix in (".py", ".h", ".c")]
    return {name for path in sources for name in _POINT.findall(path.read_text())}


def table() -> Table:
    """Returns the failpoints to sweep, by operation and role."""
    shares: Table = {}
    for line in TABLE.read_text().splitlines():
        place, points = line.split(": ")
        operation, role = place.split(" ", 1)
        shares.setdefault(operation, {})[Role(role)] = points.split()
    return shares


def certain(kind: type[Operation], action: Action) -> set[Case]:
    """Returns the cases of the table: the operation is certain to meet them, others it may meet by chance."""
    points = table()[kind.__name__].items()
    return {Case(action, POINTS, point, role=role) for role, names in points for point in names}


def process_cases(scene: InjectionScene, kind: type[Operation], action: Action) -> Sequence[Case]:
    """Returns the cases of the table, and all others that the operation meets if EVERYTHING is swept."""
    found = record(scene, kind).points.items() if EVERYTHING else ()
    met = {Case(action, POINTS, point, role=role) for role, names in found for point in names}
    return sorted(certain(kind, action) | met, key=str)


def recorded(on: Stage, folder: Path) -> Table:
    """Records all failpoints that each operation meets. Takes half a minute."""
    return {kind.__name__: _record_one(on, folder / kind.__name__, kind) for kind in OPERATIONS}


def _record_one(on: Stage, folder: Path, kind: type[Operation]) -> dict[Role, list[str]]:
    folder.mkdir()
    with InjectionScene(on, folder, kind.flags_in(folder)) as scene:
        return {role: sorted(points) for role, points in record(scene, kind).points.items()}


def shared_out(recorded: Table) -> Table:
    """Returns a table with each failpoint and role once, in the first operation that meets it.

    Each operation also gets the rarest of its failpoints.
    """
    known: set[tuple[Role, str]] = set()
    shares: Table = {}
    for operation, of_role in recorded.items():
        shares[operation] = {
            role: sorted(
                {point for point in points if (role, point) not in known} | set(_rarest(recorded, role, points))
            )
            for role, points in of_role.items()
        }
        known |= {(role, point) for role, points in of_role.items() for point in points}
    return shares


def _rarest(recorded: Table, role: Role, points: Sequence[str]) -> list[str]:
    """Returns some failpoints that few operations meet."""
    times = Counter(point for of_role in recorded.values() for point in of_role.get(role, ()))
    return sorted(points, key=lambda point: (times[point], point))[:_LEAST]


def main() -> None:
    """Writes crossings.txt, and prints the failpoints that no operation meets."""
    with tempfile.TemporaryDirectory() as place, stage(Path(place)) as on:
        shares = shared_out(recorded(on, Path(place)))
    lines = [f"{kind} {role.value}: {' '.join(points)}\n" for kind, of in shares.items() for role, points in of.items()]
    TABLE.write_text("".join(lines))
    met = {point for of_role in shares.values() for points in of_role.values() for point in points}
    for point in sorted(points_in_sources() - met):
        sys.stdout.write(f"no operation meets {point}\n")


if __name__ == "__main__":
    main()
