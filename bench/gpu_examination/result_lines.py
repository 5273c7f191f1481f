"""A plugin of pytest that prints the result of each test as a JSON line as soon as it has ended."""

from __future__ import annotations

import json
from typing import Any

import pytest


class ResultLines:
    """Prints a line for each test, and one for each error in its set-up or tear-down."""

    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Prints the line. pytest calls this after each phase of a test."""
        if report.when == "call" or not report.passed:
            line: dict[str, object] = {"name": report.nodeid, "seconds": round(report.duration, 3)}
            line["outcome"] = f"{report.outcome} in {report.when}"
            if report.failed:
                line["why"] = str(report.longrepr)[-2000:]
            # The line before it ends with a character for each test that has just ended.
            self._terminal.write(f"\n{json.dumps(line)}\n", flush=True)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: Any) -> None:
    """Registers the plugin after the terminal, which the workers of xdist lack."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(ResultLines(terminal))
