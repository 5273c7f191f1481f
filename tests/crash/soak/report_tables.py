"""Formats the report of a soak as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from soak.plan import WINDOWS
from soak.report import Report
from soak.slope_test import Growth
from soak.slowdown_test import MARGIN, Drift, Ratio


def markdown(report: Report, chart: str) -> str:
    """Returns the report as Markdown. `chart` is the file name of the chart beside it."""
    verdict = (
        "A promise was broken, or a series grew or slowed down."
        if report.failed
        else "No promise was broken, and no series grew or slowed down."
    )
    parts = [
        f"# A soak of {report.seconds / 60:.1f} minutes\n\n{verdict}\n",
        f"Seed {report.seed}; {report.machine}. {report.beside}\n",
        f"![the measured series]({chart})\n",
        "## Events\n",
        _counts("killed", report.deaths),
        _counts("stopped for a while", report.stops),
        _counts("started", report.lives),
        _counts("reported, in pages", report.responses),
        f"{report.bytes_verified / 1e9:.1f} GB were compared byte by byte; {report.samples} samples were checked.",
        f"A daemon served after: {report.adoptions}. A slot was free after a death: {report.slots_returned}.\n",
        f"## Growth\n\n{_GROWTH}\n",
        *_growths(report.growths),
        "" if report.warm else "\nThe disk was not full when measuring began: its limit is checked, its growth is not.",
        f"\n## Slowdown\n\n{_compared(report)}{_DRIFT}\n",
        *_drifts(report.drifts),
        "\nThe longest calls, in ms: " + ", ".join(f"{call} {ms}" for call, ms in report.longest_ms.items()) + ".\n",
        f"## Violations: {len(report.violations)}\n",
        *(f"- {violation}" for violation in report.violations),
    ]
    return "\n".join(parts) + "\n"


_GROWTH = """The slope is computed within the lives of processes (Theil and Sen, over medians of time slices, without
the start of each life), with its 99 % interval. The proven growth is the lower end of the interval times the longest
life. A proven growth beyond the limit is a leak. "All lives" treats them as one."""

_DRIFT = f"""Intervals have 99 % (bootstrap over windows). The machine's ratio is that of a fixed piece of work that the
same process times before each call (scattered memory reads before a match; a message to another process and back before
a reserve), and "relative" is the ratio of the calls in units of that work. A call is slower if it is slower by the
clock and relative to the fixed work, in both by more than {100 * (MARGIN - 1):.0f} % at the lower end of the
interval."""


def _compared(report: Report) -> str:
    parts = f"the first and the last {report.part:.0f} s of the run"
    return f"The table compares {parts}, each in {WINDOWS} windows, by the medians of the windows' quantiles. "


def _counts(head: str, counts: Mapping[str, int]) -> str:
    rows = "\n".join(f"| {name} | {count:,} |" for name, count in counts.items())
    return f"| {head} | how many |\n|---|---:|\n{rows}\n"


def _growths(growths: Iterable[Growth]) -> Iterable[str]:
    yield "| what | first tenth | last tenth | most | slope an hour | interval | longest life | proven | limit | |"
    yield "|---|---:|---:|---:|---:|---|---:|---:|---:|---|"
    for one in growths:
        slope, unit = one.slope, f" {one.unit}" if one.unit else ""
        values = f"{one.first:.2f}{unit} | {one.last:.2f}{unit} | {one.most:.2f}{unit}"
        interval = f"{slope.low:+.2f} to {slope.high:+.2f}"
        said = "flat" if one.flat else "**GROWS**"
        judged = f"{60 * one.span:.1f} min | {one.proven:.2f} | {one.limit:.2f} | {said}"
        yield f"| {one.name} | {values} | {slope.each_hour:+.2f}{unit} | {interval} | {judged} |"


def _drifts(drifts: Iterable[Drift]) -> Iterable[str]:
    yield "| call | quantile | first | last | ratio | of the machine | relative | |"
    yield "|---|---:|---:|---:|---|---|---|---|"
    for one in drifts:
        said = "equal" if one.equal else "**SLOWER**"
        times = f"{1e6 * one.first:.1f} µs | {1e6 * one.last:.1f} µs"
        ratios = " | ".join(map(_ratio, (one.ratio, one.machine, one.beside)))
        yield f"| {one.call} | p{100 * one.share:g} | {times} | {ratios} | {said} |"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
