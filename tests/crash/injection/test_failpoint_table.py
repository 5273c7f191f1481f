"""Tests that the sweeps know all failpoints. It takes no time, so that `make test` finds a failpoint that was added."""

from __future__ import annotations

from pathlib import Path

from injection.failpoint_table import OPERATIONS, points_in_sources, table
from injection.injector import Role
from pagetier.shm import _core


def test_every_failpoint_is_swept() -> None:
    """Fails after a failpoint was added, until `python -m injection.failpoint_table` was run in tests/crash.

    If no operation meets the failpoint, one has to be added.
    """
    swept = {point for of_role in table().values() for of_one in of_role.values() for point in of_one}
    assert sorted(points_in_sources() - swept) == [], "no operation meets these failpoints"
    assert sorted(swept - points_in_sources()) == [], "these failpoints are in the table but not in the sources"


def test_every_operation_and_role_is_swept() -> None:
    assert set(table()) == {kind.__name__ for kind in OPERATIONS}
    assert {role for of_role in table().values() for role in of_role} == set(Role)


def test_the_installed_core_has_no_failpoints() -> None:
    assert b"pt_crossed" not in Path(_core.__file__).read_bytes()
