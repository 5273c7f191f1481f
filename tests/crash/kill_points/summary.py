"""Prints a summary of the sweeps, which no test checks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many cases were met, and the names of those that were met by chance in the recording and not again."""
    swept = list(_swept(terminalreporter))
    missed = [case for _, cases in swept for case in cases]
    if swept:
        terminalreporter.section("sweeps")
        terminalreporter.write_line(f"{sum(count for count, _ in swept) - len(missed)} cases were met")
        terminalreporter.write_line(
            f"{len(missed)} cases were not met again; another case covers the failpoint of each"
        )
    for case in missed:
        terminalreporter.write_line(f"  {case}")


def _swept(reporter: pytest.TerminalReporter) -> Iterator[tuple[int, list[str]]]:
    for report in reporter.getreports("passed") + reporter.getreports("failed"):
        yield from (value for name, value in report.user_properties if name == "swept")
