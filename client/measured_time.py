"""Learns how long something takes from measurements, as a linear function of a few quantities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

_SURPRISE: Final = 2.0  # times what was expected: an outlier, or the begin of another speed
_FIRST: Final = 5  # measurements, of which none is an outlier: they may be of other lengths than those before
_SHORTEST_S: Final = 1e-9  # of a measurement
# Decide how a time is divided among quantities that have always had the same proportion: the constant gets nothing.
_DAMPING: Final = 1e-7
_DAMPING_OF_CONSTANT: Final = 1e-4
_NOISE: Final = 0.2  # of a measurement, by which it may say too much: four times what is usual
_FADING: Final = 0.999  # what measurements of a kind count after each one of any kind


class _Equations:
    """The sums from which least squares find the factor of each quantity."""

    def __init__(self, quantities: int) -> None:
        self._among = range(quantities)
        self._squares = [[0.0] * quantities for _ in self._among]
        self._products = [0.0] * quantities

    def add(self, quantities: Sequence[float], seconds: float) -> None:
        """Adds a measurement."""
        for at in self._among:
            row = self._squares[at]
            for other in self._among:
                row[other] += quantities[at] * quantities[other]
            self._products[at] += quantities[at] * seconds

    def add_all(self, more: _Equations, weight: float) -> None:
        """Adds the measurements of other equations, which count `weight` times."""
        for at in self._among:
            row, squares = self._squares[at], more._squares[at]
            for other in self._among:
                row[other] += weight * squares[other]
            self._products[at] += weight * more._products[at]

    def scale(self, squares: float, products: float) -> None:
        """Multiplies the sums by factors."""
        self._squares = [[square * squares for square in row] for row in self._squares]
        self._products = [product * products for product in self._products]

    def solved(self) -> list[float]:
        """Returns the factors: those that would be negative are 0, the most negative one first."""
        used = [at for at in self._among if self._squares[at][at] > 0]
        while used:
            found = dict(zip(used, self._solved(used), strict=True))
            least = min(used, key=found.__getitem__)
            if found[least] >= 0:
                return [found.get(at, 0.0) for at in self._among]
            used.remove(least)
        return [0.0 for _ in self._among]

    def least(self, quantities: Sequence[float]) -> float:
        """Returns the least time that the measurements allow; 0 before the first one."""
        expected, error = self._bounded(quantities)
        return max(0.0, expected - error)

    def most(self, quantities: Sequence[float]) -> float:
        """Returns the most time that the measurements allow; infinite before the first one."""
        return sum(self._bounded(quantities))

    def _bounded(self, quantities: Sequence[float]) -> tuple[float, float]:
        """Returns the expected time, and the error that it may have since measurements are noisy.

        The error is that of a line, whose quantities are the constant and what the others take together.
        """
        factors = self.solved()
        others = [0.0, *factors[1:]]
        products = [_sum_of_products(row, others) for row in self._squares]
        constants, both, squares = self._squares[0][0], products[0], _sum_of_products(products, others)
        certain = (1 + _DAMPING_OF_CONSTANT) * constants * squares - both**2
        if certain <= 0:
            return 0.0, math.inf
        constant, other = float(quantities[0]), _sum_of_products(others, quantities)
        variance = (squares * constant**2 - 2 * both * constant * other + constants * other**2) / certain
        return factors[0] * constant + other, _NOISE * math.sqrt(max(0.0, variance))

    def _solved(self, used: Sequence[int]) -> list[float]:
        """Returns the factors of the quantities in `used` if there are no others, by Gaussian elimination."""
        rows = [[self._squares[at][other] for other in used] + [self._products[at]] for at in used]
        for at, row in enumerate(rows):
            row[at] *= 1 + (_DAMPING if used[at] else _DAMPING_OF_CONSTANT)  # so that no pivot is 0
        for at, pivot in enumerate(rows):
            for row in rows[at + 1 :]:
                factor = row[at] / pivot[at]
                for column in range(at, len(row)):
                    row[column] -= factor * pivot[column]
        factors = [0.0] * len(rows)
        for at in reversed(range(len(rows))):
            known = sum(rows[at][other] * factors[other] for other in range(at + 1, len(rows)))
            factors[at] = (rows[at][-1] - known) / rows[at][at]
        return factors


class MeasuredTime:
    """A time that is linear in some quantities, as least squares learn it; the latest measurements weigh most.

    No factor is negative, since more of anything takes no less time.

    Args:
        quantities: Their number. The first one is always 1: a time that each measurement takes.
        remembered: The number of measurements that count.

    Attributes:
        equations: What was measured.
        weight: How many measurements that is, up to `remembered`.
    """

    def __init__(self, quantities: int, remembered: int) -> None:
        self._kept = 1 - 1 / remembered
        self.equations = _Equations(quantities)
        self.weight = 0.0
        self._factors: list[float] | None = None
        self._direction = 0
        self._learned = 0

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._learned > 0

    def seconds(self, quantities: Sequence[float]) -> float:
        """Returns the expected time; infinite before the first measurement."""
        if not self.known:
            return math.inf
        if self._factors is None:
            self._factors = self.equations.solved()
        return _sum_of_products(self._factors, quantities)

    def learn(self, quantities: Sequence[float], seconds: float) -> None:
        """Adds a measurement.

        One that took far longer than expected, and than the earlier ones allow, counts in full only if the one before
        did too, and then all earlier ones count as slower. The second one in a row that was far faster counts more than
        all slow ones.
        """
        weighed = seconds
        if self._learned >= _FIRST:
            seconds, weighed = self._believed(seconds, quantities)
        # Errors count in proportion to the time, so that a short one is known as well as a long one.
        unit = max(weighed, _SHORTEST_S)
        self.equations.scale(self._kept, self._kept)
        self.equations.add([quantity / unit for quantity in quantities], seconds / unit)
        self.weight = self._kept * self.weight + 1
        self._factors, self._learned = None, self._learned + 1

    def _believed(self, seconds: float, quantities: Sequence[float]) -> tuple[float, float]:
        """Returns what counts of a measurement, and the time in proportion to which its error counts."""
        expected = max(_SHORTEST_S, self.seconds(quantities))
        if _SURPRISE * expected < seconds <= self.equations.most(quantities):
            self._direction = 0
            return seconds, seconds  # no outlier: no earlier one was long enough to say how long it takes
        direction = int(seconds > _SURPRISE * expected) - int(seconds * _SURPRISE < expected)
        again, self._direction = direction == self._direction, direction
        if direction > 0 and not again:
            return _SURPRISE * expected, expected
        if direction > 0:
            slower = seconds / expected
            self.equations.scale(slower**-2, 1 / slower)
        return seconds, seconds if direction and again else expected


class TimeByKind:
    """A time as in MeasuredTime whose measurements are of several kinds, say of different lengths.

    Many measurements of one kind do not replace those of another, from which they may not tell all factors.

    Args:
        quantities: The number of quantities.
        remembered: The number of measurements of each kind that count.
    """

    def __init__(self, quantities: int, remembered: int) -> None:
        self._quantities, self._remembered = quantities, remembered
        self._kinds: dict[int, MeasuredTime] = {}
        self._latest: dict[int, int] = {}  # the number of the latest measurement of each kind
        self._learned = 0
        self._factors: list[float] | None = None

    def seconds(self, quantities: Sequence[float]) -> float:
        """Returns the expected time; infinite before the first measurement."""
        if not self._kinds:
            return math.inf
        if self._factors is None:
            self._factors = self._equations(self._kinds).solved()
        return _sum_of_products(self._factors, quantities)

    def learn(self, kind: int, quantities: Sequence[float], seconds: float) -> None:
        """Adds a measurement of a kind. The kinds are in order."""
        if kind not in self._kinds:
            self._kinds[kind] = MeasuredTime(self._quantities, self._remembered)
        self._kinds[kind].learn(quantities, seconds)
        self._learned += 1
        self._latest[kind], self._factors = self._learned, None

    def weight(self, least: int) -> float:
        """Returns how many measurements count of the kinds from `least` on. It falls slowly while others are added."""
        return math.fsum(one.weight * self._faded(kind) for kind, one in self._kinds.items() if kind >= least)

    def least(self, quantities: Sequence[float]) -> float:
        """Returns the least time that the measurements of kinds from 0 on allow, since they are noisy."""
        return self._equations(kind for kind in self._kinds if kind >= 0).least(quantities)

    def _equations(self, kinds: Iterable[int]) -> _Equations:
        equations = _Equations(self._quantities)
        for kind in kinds:
            equations.add_all(self._kinds[kind].equations, self._faded(kind))
        return equations

    def _faded(self, kind: int) -> float:
        return _FADING ** (self._learned - self._latest[kind])


def _sum_of_products(factors: Sequence[float], quantities: Sequence[float]) -> float:
    return math.fsum(map(float.__mul__, factors, map(float, quantities)))
