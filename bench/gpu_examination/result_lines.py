"""A plugin of pytest that prints the result of each test as a JSON line as soon as it has ended."""

from __future__ import annotations

import json
from typing import Any


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
            self._terminal.ensure_newline()
            self._terminal.write_line(json.dumps(line))


def pytest_configure(config: Any) -> None:
    """Registers the plugin in the process that reports, not in its workers."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(ResultLines(terminal))
