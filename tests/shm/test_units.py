"""Sizes and durations: accepted inputs, formatted outputs and rejected inputs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetier.shm.units import counted, format_size, parse_duration, parse_size, spell_duration, spell_size

KIB, MIB, GIB = 1024, 1024**2, 1024**3


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        (4096, 4096),
        ("4096", 4096),
        ("17 B", 17),
        ("2GiB", 2 * GIB),
        ("512 MiB", 512 * MIB),
        ("  512 MiB\n", 512 * MIB),
        ("1.5G", 3 * GIB // 2),
        ("1k", KIB),
        ("1K", KIB),
        ("1Ki", KIB),
        ("1kB", 1000),
        ("1KB", 1000),
        ("2mb", 2_000_000),
        ("2 gib", 2 * GIB),
        ("1TB", 10**12),
        ("1T", 1024**4),
        ("0.1K", 102),
        ("1.1G", 1181116006),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_sizes_are_parsed(text: str | int, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "G", "-1", "-1G", "+1G", "1e9", "1,5G", "1_000", "1.G", ".5G", "8545*4096", "1 G B", "1X"),
        *("1GiBs", "0x10", "1Gb", "1Mib", "1GIb", "inf", "nan", "٣", "1\u00a0000", "8E", "16777216T"),
        *("9223372036854775808", "9" * 5000),
    ],
)
def test_invalid_sizes_are_rejected_and_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="size") as caught:
        parse_size(text)
    assert text in str(caught.value)


@pytest.mark.parametrize("value", [True, 1.5, None, [1], {"a": 1}, -1])
def test_other_types_are_rejected(value: object) -> None:
    with pytest.raises(ValueError, match=r'is not a size: write a number and a unit, such as "512MiB" or "1\.5G"'):
        parse_size(value)


@pytest.mark.parametrize("value", ["9" * 26, int("9" * 26), "9" * 26 + "k", 1 << 63, "9" * 4000])
def test_a_size_over_63_bits_is_rejected(value: str | int) -> None:
    with pytest.raises(ValueError, match="is too large: a size is at most"):
        parse_size(value)


@pytest.mark.parametrize("value", ["0.2", "0.0009k", "0.9 B"])
def test_a_size_below_a_byte_is_rejected_and_does_not_mean_off(value: str) -> None:
    with pytest.raises(ValueError, match=f'^"{value}" is less than one byte'):
        parse_size(value)
    assert parse_size("0") == parse_size("0.0G") == 0


@pytest.mark.parametrize(("number", "text"), [(0, "0 pages"), (1, "1 page"), (2, "2 pages"), (12345, "12,345 pages")])
def test_a_number_is_formatted_with_its_noun(number: int, text: str) -> None:
    assert counted(number, "page") == text


def test_units_of_bits_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"reads as bits \(write GB for bytes\)"):
        parse_size("1Gb")


@given(st.integers(0, 2**63 - 1))
def test_spelled_sizes_are_read_back_exactly(nbytes: int) -> None:
    assert parse_size(spell_size(nbytes)) == nbytes
    assert parse_size(nbytes) == nbytes


@given(st.integers(0, 2**50 - 1))
def test_formatted_sizes_are_read_back_to_within_their_rounding(nbytes: int) -> None:
    text = format_size(nbytes)
    number, unit = text.split()
    assert float(number) < 1024
    assert abs(parse_size(text) - nbytes) <= 0.05 * parse_size(f"1{unit}") + 1


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (MIB - 1, "1.0 MiB"),
        (24 * MIB, "24.0 MiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (-3 * GIB // 2, "-1.5 GiB"),
        (1024**6, "1024.0 PiB"),
    ],
)
def test_sizes_are_rounded_for_people(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0"), (GIB, "1GiB"), (1020 * MIB, "1020MiB"), (4097, "4097")])
def test_sizes_are_spelled_exactly(nbytes: int, text: str) -> None:
    assert spell_size(nbytes) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("250ms", 0.25), ("30s", 30.0), ("5m", 300.0), ("5 min", 300.0), ("1.5h", 5400.0), ("1d", 86400.0)],
        *[("10us", 1e-5), ("60", 60.0), (60, 60.0), (0.5, 0.5), (1e-7, 1e-7), ("0", 0.0)],
    ],
)
def test_durations_are_parsed(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 S", "5M", "1y", "1:30", "inf", "nan", "1e3", float("inf"), float("nan"), -1]
)
def test_invalid_durations_are_rejected_and_quoted(text: str | float) -> None:
    with pytest.raises(ValueError, match=r"(is not a duration: write a number and a unit, |unknown unit)") as caught:
        parse_duration(text)
    assert str(text) in str(caught.value)


@pytest.mark.parametrize("text", ["99999999999d", "36501d", "9" * 26, 3_153_600_001, 1e300, 10**40])
def test_durations_over_36500_days_are_rejected(text: str | float) -> None:
    with pytest.raises(ValueError, match=r"is too long: at most 36500d") as caught:
        parse_duration(text)
    assert str(text) in str(caught.value)
    assert parse_duration("36500d") == parse_duration(3_153_600_000) == 3_153_600_000


@given(st.integers(0, 10**15))
def test_spelled_durations_are_read_back(micros: int) -> None:
    assert parse_duration(spell_duration(micros / 1e6)) == pytest.approx(micros / 1e6, abs=1e-9)


@pytest.mark.parametrize(
    ("seconds", "text"), [(60.0, "1m"), (90.0, "90s"), (0.25, "250ms"), (0.0, "0s"), (86400, "1d")]
)
def test_durations_are_spelled_exactly(seconds: float, text: str) -> None:
    assert spell_duration(seconds) == text
