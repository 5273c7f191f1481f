"""Tests the colors of the page, light and dark: they differ for the color-blind, too, and texts stand out."""

from __future__ import annotations

import itertools
import re

import numpy as np
import numpy.typing as npt
import pytest

from pagetier.daemon.http.page.assets import STYLE

Color = npt.NDArray[np.float64]

# The matrices of Machado, Oliveira and Fernandes (2009) for linear RGB, without any cone of a kind.
SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
LEAST_DIFFERENCE = 25.0  # in CIELAB; 2.3 is just noticed
LEAST_CONTRAST, LEAST_CONTRAST_OF_A_SHAPE = 4.5, 1.25
SIDE_BY_SIDE = ("memory", "disk", "fleet", "missed")


def schemes() -> dict[str, dict[str, Color]]:
    """Returns the colors of light and dark screens by their names, in linear RGB."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    return {"light": colors_of(light), "dark": colors_of(dark)}


def colors_of(text: str) -> dict[str, Color]:
    found = re.findall(r"--(\w+): #([0-9a-f]{6});", text)
    return {name: linear(digits) for name, digits in found}


def linear(digits: str) -> Color:
    """Returns a color of sRGB in linear RGB."""
    values = np.array([int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(color: Color) -> Color:
    """Returns a color in CIELAB, in which equal distances look equally different."""
    x, y, z = np.cbrt(XYZ @ np.clip(color, 0, 1) / XYZ.sum(axis=1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: Color, other: Color) -> float:
    """Returns the contrast of WCAG 2."""
    dark, light = sorted(float(XYZ[1] @ color) for color in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_that_stand_side_by_side_differ(scheme: str, sight: str) -> None:
    seen = {name: lab(SIGHTS[sight] @ color) for name, color in schemes()[scheme].items()}
    for one, other in (*itertools.combinations(SIDE_BY_SIDE, 2), ("curve", "memory")):
        difference = float(np.linalg.norm(seen[one] - seen[other]))
        assert difference > LEAST_DIFFERENCE, f"{one} and {other} differ by {difference:.1f}"


def test_red_and_green_would_be_refused() -> None:
    red, green = (lab(SIGHTS["deuteranopia"] @ linear(digits)) for digits in ("a08000", "789000"))
    assert np.linalg.norm(red - green) < LEAST_DIFFERENCE


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out(scheme: str) -> None:
    colors = schemes()[scheme]
    for text, ground in itertools.product(("text", "dim", "bad"), ("back", "card")):
        assert contrast(colors[text], colors[ground]) > LEAST_CONTRAST, (text, ground)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bars_and_areas_stand_out(scheme: str) -> None:
    colors = schemes()[scheme]
    for shape in (*SIDE_BY_SIDE, "curve"):
        assert contrast(colors[shape], colors["card"]) > LEAST_CONTRAST_OF_A_SHAPE, shape
