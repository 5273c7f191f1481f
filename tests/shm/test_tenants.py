"""Tests wrong arguments of quotas, which must change nothing. tests/shm/stress/quotas.c tests what quotas do."""

from __future__ import annotations

from array import array

import pytest

from index_with_disk import Place
from pagetier.shm._core import TENANTS

NO_LIMITS = (0.0, 1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("shares", "patterns"),
    [
        ((), []),
        (NO_LIMITS * (TENANTS + 1), ["x"] * TENANTS),
        ((*NO_LIMITS, 0.5, 0.4, 0, 1), ["x"]),
        ((*NO_LIMITS, -0.1, 0.4, 0, 1), ["x"]),
        ((*NO_LIMITS, 0, 1, 0, 1.1), ["x"]),
        ((*NO_LIMITS, 0, 1, 0, float("nan")), ["x"]),
        (NO_LIMITS * 2, []),
        (NO_LIMITS * 2, ["x" * 200]),
        (NO_LIMITS[1:], []),
    ],
)
def test_wrong_quotas_are_rejected(place: Place, shares: tuple[float, ...], patterns: list[str]) -> None:
    with pytest.raises(ValueError):
        place.owner.set_quotas(array("d", shares), patterns)
    assert len(place.owner.tenants()) == 1 and not place.owner.check_integrity()


def test_the_first_pattern_that_matches_counts(place: Place) -> None:
    place.owner.set_quotas(array("d", NO_LIMITS * 4), ["a*", "ab", "x y ?"])
    numbers = {name: place.owner.tenant_of(name) for name in ("ab", "ab 12345678", "b", "x y 1", "x y 12", "")}
    assert numbers == {"ab": 1, "ab 12345678": 1, "b": 0, "x y 1": 3, "x y 12": 0, "": 0}
    with pytest.raises(ValueError):
        place.owner.frames_before_unwritten(1, 4)
