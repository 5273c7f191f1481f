"""Finds the labels of a picture that lie over each other, by estimated boxes: no browser is needed."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import Final, NamedTuple

_EM: Final = 12.0
_WIDTH: Final = 0.55 * _EM  # of a character, on average
_ABOVE, _BELOW = 0.72 * _EM, 0.2 * _EM
_BEGINS: Final = {"start": 0.0, "middle": 0.5, "end": 1.0}


class _Box(NamedTuple):
    text: str
    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


def overlapping_labels(picture: ET.Element) -> list[tuple[str, str]]:
    """Returns the pairs of labels of which one covers a part of the other."""
    boxes = [_box(each) for each in picture.iter() if each.tag.endswith("text")]
    return [(one.text, other.text) for one, other in itertools.combinations(boxes, 2) if one.meets(other)]


def _box(label: ET.Element) -> _Box:
    text = "".join(label.itertext())
    width, x, y = len(text) * _WIDTH, float(label.attrib["x"]), float(label.attrib["y"])
    left = x - _BEGINS[label.attrib.get("text-anchor", "start")] * width
    return _Box(text, left, left + width, y - _ABOVE, y + _BELOW)
