"""Selects the tests of a run of pytest: all but those of proofs, or a shard, whose summary it prints at the end."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

import pytest

from proofs.catalog import tests_of_proofs
from proofs.shard import MARK, ROOT, SKIPPED

COUNTED: Final = "counted"
"""The property in which a test records numbers that a seed determines, by name: `{"failpoints": 12}`."""
_OPTION: Final = "--shard"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --shard."""
    parser.addoption(_OPTION, metavar="K/N", help="run the K-th of N parts of the tests, and print a summary")
    parser.addoption("--proofs", action="store_true", help="leave out no test that belongs to a proof")


def pytest_configure(config: pytest.Config) -> None:
    """Includes the tests of proofs if the command line, which processes of xdist have too, names files or folders."""
    config.option.proofs |= config.args_source == pytest.Config.ArgsSource.ARGS
    if config.getoption(_OPTION) and (config.option.keyword or config.option.deselect):
        raise pytest.UsageError(f"{_OPTION} selects the tests: leave out -k and --deselect, also in addopts")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drops the tests that this run does not want."""
    shard = config.getoption(_OPTION)
    if not config.option.proofs:
        _keep(config, items, [item for item in items if not _in_a_proof(item)])
    elif shard:
        number, count = map(int, shard.split("/"))
        _keep(config, items, items[number - 1 :: count])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the lines of the summary of a shard."""
    if config.getoption(_OPTION):
        for line in summary(terminalreporter):
            terminalreporter.write_line(MARK + line)


def summary(reporter: pytest.TerminalReporter) -> list[str]:
    """Returns how many tests passed, a digest of their names, their numbers, and what was skipped."""
    passed = [report for report in reporter.getreports("passed") if report.when == "call"]
    names = sorted(report.nodeid for report in passed)
    numbers: Counter[str] = Counter()
    for report in passed:
        for name, value in report.user_properties:
            numbers.update(value if name == COUNTED and isinstance(value, dict) else {})
    lines = [f"{len(names)} tests passed, {_digest(names)}"] if names else []
    lines += [f"{name}: {numbers[name]}" for name in sorted(numbers)]
    return lines + sorted(f"{SKIPPED}{report.nodeid}" for report in reporter.getreports("skipped"))


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    dropped = set(items) - set(kept)
    config.hook.pytest_deselected(items=list(dropped))
    items[:] = kept


def _in_a_proof(item: pytest.Item) -> bool:
    path = item.path.relative_to(ROOT)
    return not tests_of_proofs().isdisjoint({str(path), *map(str, path.parents)})
