"""The table of the failpoints to sweep in each operation: crossings.json.

`python -m kill_points.failpoint_table` writes it again after failpoints were added.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from kill_points.cases import crossings
from kill_points.control import Control
from kill_points.daemon_lifecycles import LIVES
from kill_points.disk_lifecycles import DISK_LIVES
from kill_points.disk_operations import PAGES_ON_DISK
from kill_points.fork_client import ForkClient
from kill_points.instrumented_build import ROOT
from kill_points.operation import Operation, Role
from kill_points.operations import OF_ENGINES
from kill_points.scene import Scene

OPERATIONS: Final[tuple[type[Operation], ...]] = (*OF_ENGINES, *LIVES, *PAGES_ON_DISK, *DISK_LIVES)
TABLE: Final = Path(__file__).with_name("crossings.json")
Table: TypeAlias = dict[str, dict[Role, list[str]]]
_ROOMS: Final = ("shm", "tiers", "client", "daemon")
_LEAST: Final = 2
_POINT: Final = re.compile(r'^\s*(?:PT_POINT|point)\("([\w.]+)"\)', re.MULTILINE)


def points_in_sources() -> set[str]:
    """Returns all failpoints that the sources name."""
    sources = [path for room in _ROOMS for path in (ROOT / room).rglob("*.*") if path.suffix in (".py", ".h", ".c")]
    return {name for path in sources for name in _POINT.findall(path.read_text())}


def table() -> Table:
    """Returns the failpoints to sweep, by operation and role."""
    return msgspec.json.decode(TABLE.read_bytes(), type=Table)


def record(fork_client: ForkClient, control: Control, folder: Path) -> Table:
    """Records all failpoints that each operation crosses. Takes half a minute."""
    return {kind.__name__: _record_one(fork_client, control, folder / kind.__name__, kind) for kind in OPERATIONS}


def _record_one(
    fork_client: ForkClient, control: Control, folder: Path, kind: type[Operation]
) -> dict[Role, list[str]]:
    folder.mkdir()
    with Scene(fork_client, control, folder, kind.flags(folder)) as scene:
        return {role: sorted(points) for role, points in crossings(scene, kind).items()}


def shared_out(recorded: Table) -> Table:
    """Returns a table with each failpoint and role once, in the first operation that crosses it.

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
    """Returns some failpoints that few operations cross."""
    times = Counter(point for of_role in recorded.values() for point in of_role.get(role, ()))
    return sorted(points, key=lambda point: (times[point], point))[:_LEAST]


def main() -> None:
    """Writes crossings.json, and prints the failpoints that no operation crosses."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with Control(folder / "points") as control, ForkClient(control.path, folder / "log") as fork_client:
            shares = shared_out(record(fork_client, control, folder))
    TABLE.write_bytes(msgspec.json.format(msgspec.json.encode(shares), indent=1) + b"\n")
    crossed = {point for of_role in shares.values() for points in of_role.values() for point in points}
    for point in sorted(points_in_sources() - crossed):
        sys.stdout.write(f"no operation crosses {point}\n")


if __name__ == "__main__":
    main()
