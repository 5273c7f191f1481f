"""`pagetier advise`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from pagetier.daemon.cli.config import config_of
from pagetier.daemon.cli.daemon_connection import daemon_at, socket_option
from pagetier.daemon.cli.number_types import Number
from pagetier.daemon.common.lookup_window import LOOKUP_WINDOW_S
from pagetier.daemon.stats.miss_reasons import miss_reasons
from pagetier.daemon.stats.size_advice import SizeAdvice, read_advice
from pagetier.daemon.stats.snapshot import Snapshot
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.shm._core import SampledLookups
from pagetier.shm.units import counted, format_size, spell_duration

_BAR = 40
_PLOT_EVERY = 4  # of the points of the curve
_NARROWEST = 60  # columns
_LEAST_LOOKUPS = 20
_LEAST_NAME, _DIGITS = 14, 8  # characters of a namespace, and of the digest at its end
_NOTHING = "no lookups were counted yet: run engines against this daemon, then ask again"
_AT_LEAST = "At least: LRU would find that much. The daemon evicts by cadence, which finds about as much or more."
_LEFT_OUT = "those never stored are left out (pagetier stats counts them)"
_WHOLE = "Below, prompts count whole, also tokens that engines had in their own caches."
_NO_STORES = "found nothing, and no page was stored after them: there is nothing to predict from"


@click.command()
@socket_option
@click.option("--json", "show", flag_value="json", help="Print one JSON object; null before the first lookup.")
@click.option(
    "--svg",
    "picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also draw the predicted hit ratio over the size.",
)
@click.option(
    "--prefill-rate",
    type=Number(min=0, min_open=True),
    metavar="TOKENS",
    help="Tokens that one engine computes in a second: shows how many engines' prefill is saved.",
)
def advise(socket: Path, show: str | None, picture: Path | None, prefill_rate: float | None) -> None:
    """Show what other sizes of memory and disk would hit, and why pages were missed.

    The daemon samples real lookups, of whole prompts: tokens that an engine had in its own cache count, too, which
    they do not in `pagetier stats`. The row "now" is what memory and disk had of them. The row below it is what is
    predicted for the configured disk, and all others are predictions, too: of LRU. While the daemon evicts by
    "cadence", those of memory are the least to expect.

    Fewer than 20 lookups are too few for predictions, except with --json and --svg.

    Exit codes: 0: success; 1: the picture cannot be drawn or written; 3: no daemon.
    """
    with daemon_at(socket) as daemon:
        config = config_of(daemon)
        advice = read_advice(daemon.observer, daemon.observer.spaces(), config.evict.policy)
        known = daemon.observer.lookups()
        snapshot = take_snapshot(daemon.observer)
    if picture is not None:
        _draw(picture, advice, known)
    if show == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(advice), indent=2))
    elif advice is None:
        click.echo(_why_nothing(known))
    else:
        click.echo("\n".join(_report(advice, snapshot, prefill_rate)))


def _report(advice: SizeAdvice, snapshot: Snapshot, prefill_rate: float | None) -> Iterator[str]:
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    reasons = _aligned(list(_reasons(miss_reasons(advice.total.absent, snapshot))), "<>", width)
    if advice.lookups < _LEAST_LOOKUPS:
        yield from _too_few(advice, width)
        yield from reasons
        return
    yield snapshot.lookups.text
    yield from _advice_lines(advice, prefill_rate, width)
    yield from reasons
    yield from _aligned(list(_namespaces(advice, width)), "<>>>>>>", width)


def _too_few(advice: SizeAdvice, width: int) -> Iterator[str]:
    """Yields what there is to say of a few lookups: predictions from them would look like knowledge."""
    counts = counted(advice.lookups, "lookup")
    had = f"pagetier had {advice.total.hit_ratio:.1%} of the prompts' tokens; {_LEFT_OUT}"
    text = f"too little to advise on: {counts} so far, {had}; ask again from {_LEAST_LOOKUPS} lookups on"
    yield from textwrap.wrap(text, width)


def _why_nothing(known: SampledLookups | None) -> str:
    return f"{counted(known.records, 'lookup')} {_NO_STORES}" if known is not None and known.records else _NOTHING


def _draw(path: Path, advice: SizeAdvice | None, known: SampledLookups | None) -> None:
    if advice is None:
        raise click.ClickException(f"there is nothing to draw yet: {_why_nothing(known)}")
    from pagetier.daemon.cli.advise_picture import picture

    try:
        path.write_text(picture(advice), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write the picture to {path}: {error.strerror}") from error


def _advice_lines(advice: SizeAdvice, prefill_rate: float | None, width: int) -> Iterator[str]:
    """Yields what memory and disk had, and what other sizes would have.

    Args:
        advice: The advice.
        prefill_rate: Tokens that an engine computes in a second; None: not known.
        width: Columns of the terminal.

    Yields:
        Lines; only numbers of many digits make one longer than 60 columns in a terminal of 60.
    """
    total = advice.total
    tokens = f"{total.hit_ratio:.1%} of {advice.tokens_per_second:,.0f} tokens/s"
    weighed = f"{counted(advice.lookups, 'lookup')}; those {spell_duration(LOOKUP_WINDOW_S)} ago count 1/e"
    yield from textwrap.wrap(f"{_WHOLE} pagetier had {tokens} ({weighed}); {_LEFT_OUT}", width)
    if advice.warning:
        yield from textwrap.wrap(f"warning: {advice.warning}", width, break_on_hyphens=False)
    yield ""
    yield from _aligned(list(_sizes(advice, prefill_rate)), "<>>>>", width)
    if total.memory[0].lower_bound:
        yield from textwrap.wrap(_AT_LEAST, width)
    if advice.knee_bytes:
        ratio = advice.knee_bytes / advice.arena_bytes
        knee = f"The knee of LRU is at {format_size(advice.knee_bytes)} ({ratio:.2g}x): beyond it, memory helps less."
        yield from textwrap.wrap(knee, width)
    yield ""
    yield from _plot(advice, width)


def _aligned(rows: Sequence[Sequence[str]], sides: str, width: int) -> Iterator[str]:
    """Yields a line for each row. Columns are two spaces apart if that fits into the width; no cell is cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) - 2 <= width else " "
    for row in rows:
        cells = [f"{cell:{side}{most}}" for cell, side, most in zip(row, sides, widths, strict=False)]
        yield gap.join(cells).rstrip()


def _sizes(advice: SizeAdvice, prefill_rate: float | None) -> Iterator[tuple[str, ...]]:
    total, columns = advice.total, 5 if prefill_rate else 4
    yield ("A cache of", "", "hit", "tokens/s", "engines")[:columns]
    yield ("", "", "ratio", "saved", "saved")[:columns]
    yield ("now", format_size(advice.arena_bytes), *_saved(advice, "measured ", total.hit_ratio, prefill_rate))
    if (disk := advice.present_disk) is not None:
        yield ("  and disk", format_size(disk.bytes), *_saved(advice, "predicted ", disk.hit_ratio, prefill_rate))
    for kind, rows in (("memory", total.memory), ("disk", total.disk)):
        for row in rows:
            least = "at least " if row.lower_bound else ""
            saved = _saved(advice, least, row.hit_ratio, prefill_rate)
            yield (f"{kind:<6} {row.size}", format_size(row.bytes), *saved)
    yield ("endless", "", *_saved(advice, "", total.endless_hit_ratio, prefill_rate))


def _saved(advice: SizeAdvice, least: str, hit_ratio: float, prefill_rate: float | None) -> tuple[str, ...]:
    tokens = hit_ratio * advice.tokens_per_second
    engines = (f"{tokens / prefill_rate:.2f}",) if prefill_rate else ()
    return f"{least}{hit_ratio:.1%}", f"{tokens:,.0f}", *engines


def _plot(advice: SizeAdvice, width: int) -> Iterator[str]:
    bar = min(_BAR, width - len("1023.9 GiB  100%  (now)") - 1)
    yield "Hit ratio of an LRU cache by its size"
    for size, ratio in advice.curve[::_PLOT_EVERY]:
        here = " (now)" if size == advice.arena_bytes else ""
        yield f"{format_size(size):>11} {ratio:>5.0%} {'#' * round(ratio * bar)}{here}"


def _reasons(reasons: Sequence[tuple[str, float]]) -> Iterator[tuple[str, str]]:
    if reasons:
        yield "", ""
        yield "Tokens that were not found", "share"
    yield from ((about, f"{share:.1%}") for about, share in reasons)


def _namespaces(advice: SizeAdvice, width: int) -> Iterator[tuple[str, ...]]:
    if len(advice.namespaces) < 2:
        return
    sizes = [row.size for row in advice.total.memory]
    numbers = [
        [f"{ratio:.1%}" for ratio in (one.hit_ratio, *(row.hit_ratio for row in one.memory), one.endless_hit_ratio)]
        for one in advice.namespaces
    ]
    most = width - sum(max(len("100.0%"), len(head)) + 1 for head in (*sizes, "now", "endless"))
    yield ("",) * (len(sizes) + 3)
    yield ("Namespace", "now", *sizes, "endless")
    for one, ratios in zip(advice.namespaces, numbers, strict=True):
        yield (_shortened(one.namespace, max(most, _LEAST_NAME)), *ratios)


def _shortened(name: str, most: int) -> str:
    """Returns a name of at most `most` characters, with the digits of the digest at its end."""
    return name if len(name) <= most else f"{name[: most - _DIGITS - 2]}..{name[-_DIGITS:]}"
