"""The pictures of `pagetier advise --svg` and of the page: no label lies over another, wherever the knee is."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from pagetier.daemon.cli.advise_picture import picture
from pagetier.daemon.http.page.charts import curve_chart
from size_advices import SIZES, advice_with_knee
from svg_labels import overlapping_labels


@pytest.mark.parametrize("endless", [0.05, 0.6, 1.0])
@pytest.mark.parametrize("knee", SIZES)
def test_no_label_lies_over_another(knee: int, endless: float) -> None:
    advice = advice_with_knee(knee, endless)
    assert overlapping_labels(ET.fromstring(picture(advice))) == []
    assert overlapping_labels(ET.fromstring(curve_chart(advice, "about").markup)) == []


def test_labels_that_lie_over_each_other_are_found() -> None:
    labels = (("end", 46, 30, "100 %"), ("middle", 50, 20, "knee"))
    texts = (f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for anchor, x, y, text in labels)
    assert overlapping_labels(ET.fromstring(f"<svg>{''.join(texts)}</svg>")) == [("100 %", "knee")]
