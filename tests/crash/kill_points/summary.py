"""Says at the end what was swept, for which no test fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many cases were met, and by name those that came about by chance once, and not again."""
    swept = list(_swept(terminalreporter))
    missed = [case for _, cases in swept for case in cases]
    if swept:
        terminalreporter.section("sweeps")
        terminalreporter.write_line(f"{sum(count for count, _ in swept) - len(missed)} cases met")
        terminalreporter.write_line(f"{len(missed)} that each have another case of their own were not met again")
    for case in missed:
        terminalreporter.write_line(f"  {case}")


def _swept(reporter: pytest.TerminalReporter) -> Iterator[tuple[int, list[str]]]:
    for report in reporter.getreports("passed") + reporter.getreports("failed"):
        yield from (value for name, value in report.user_properties if name == "swept")
