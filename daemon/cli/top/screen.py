"""Draws the screen of `pagetier top`: 60 columns or more and few lines, in the characters that the terminal has."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Group
from rich.text import Text

from pagetier.daemon.cli.tables import age, count, device_line, fleet_line, quota_cells
from pagetier.daemon.cli.tier_text import synced
from pagetier.daemon.cli.top.history import History
from pagetier.daemon.stats.snapshot import ClientStats, DiskWork, PageTier, Snapshot, Tiers
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm.units import counted, format_size

WIDTH = 80
_LEAST_WIDTH = 60
_BESIDE_BAR, _BESIDE_SPARKS, _BESIDE_NAME = 50, 40, 60  # columns of the text beside them
_LEFT_OUT = 12  # columns of the ages and pins of clients, which a narrow screen leaves out
_QUOTA_NAME = 24
_SMALL, _LEAST = 9.95, 0.1  # rates per second that have a digit after the point
_BELOW = " " * 7  # the names of the tiers


class Charset(msgspec.Struct, frozen=True):
    """Characters for bars, from full to empty in eighths, and for sparklines, from nothing to all."""

    full: str
    parts: str
    empty: str
    sparks: str


UNICODE = Charset("█", " ▏▎▍▌▋▊▉", "░", "▁▂▃▄▅▆▇█")
ASCII = Charset("#", " ", "-", "_.:-=+*#")


def charset_for(encoding: str) -> Charset:
    """Returns the characters that an encoding has."""
    return UNICODE if encoding.lower().startswith("utf") else ASCII


class ScreenContext(msgspec.Struct, frozen=True):
    """The socket of the daemon, the lines, characters and columns of the screen, and where the daemon's page is."""

    socket: Path
    lines: int
    charset: Charset
    columns: int = WIDTH
    page: str = ""

    @property
    def width(self) -> int:
        """The columns that are used."""
        return max(_LEAST_WIDTH, self.columns)


def screen(history: History, place: ScreenContext) -> Group:
    """Returns the whole screen."""
    snapshot = history.now
    lines = [
        _headline(snapshot, place),
        Text(f"page at {place.page}" if place.page else "", style="dim"),
        *_tiers(snapshot, place),
        _ratio(history, place),
        Text(),
        *_rates(history, place.width),
        *_left(history, place.width),
        *_quotas(snapshot, place.width),
        Text(),
    ]
    room = max(1, place.lines - len(lines) - 2)
    return Group(*lines, *_clients(history, room, place.width))


def gone(place: ScreenContext, why: str) -> Group:
    """Returns the screen without a daemon. why: The reason."""
    waiting = Text("waiting for the daemon; q or Ctrl-C quits", style="dim")
    return Group(
        _cut(Text(f"pagetier on {place.socket}", style="bold"), place.width), Text(), Text(why, style="red"), waiting
    )


def _headline(snapshot: Snapshot, place: ScreenContext) -> Text:
    daemon = snapshot.daemon
    attached = f"{daemon.phase_text}, {counted(len(snapshot.clients), 'client')}, incarnation {daemon.incarnation}"
    line = Text.assemble(("pagetier ", "bold"), f"on {place.socket}")
    line.truncate(place.width - len(attached) - 2, overflow="ellipsis")
    return line + Text(attached.rjust(place.width - len(line)), style="dim")


def _tiers(snapshot: Snapshot, place: ScreenContext) -> Iterator[Text]:
    yield _tier("memory", snapshot.tiers, "cyan", place)
    if wasteful := snapshot.frame_advice:
        yield from _wrapped(_BELOW + wasteful, "yellow", place.width)
    if snapshot.disk.standing is not Standing.NONE:
        yield from _disk(snapshot, place)
    if text := fleet_line(snapshot.fleet):
        well = snapshot.fleet.standing == "open" and not snapshot.fleet.breaker_open
        yield from _wrapped(text, "dim" if well else "red", place.width)


def _disk(snapshot: Snapshot, place: ScreenContext) -> Iterator[Text]:
    disk = snapshot.disk
    if snapshot.tiers.disk.cap:
        yield _tier("disk", snapshot.tiers, "magenta", place)
    well = disk.standing is Standing.OPEN and not disk.trouble
    text = f"{disk.state}: {disk.trouble}" if disk.trouble else f"{disk.state}, {synced(disk)}"
    yield from _wrapped(_BELOW + text, "dim" if well else "red", place.width)
    for device in disk.devices if disk.several else ():
        well = device.standing is Standing.OPEN and not device.trouble
        line = _BELOW + device_line(device, snapshot.daemon.frame_bytes)
        yield from _wrapped(line, "dim" if well else "red", place.width)


def _tier(name: str, tiers: Tiers, style: str, place: ScreenContext) -> Text:
    tier: PageTier = getattr(tiers, name)
    share = min(1.0, tier.used / tier.room) if tier.room else 0.0
    room = f" of {'-' if tier.room_pages is None else count(tier.room_pages):>6}" if place.width >= WIDTH else ""
    pages = f"{count(tier.pages):>6}{room} pages"
    text = f" {format_size(tier.used):>10} of {format_size(tier.room):>10} {share:>4.0%} {pages}"
    full, empty = bar(share, place.width - _BESIDE_BAR - len(room), place.charset)
    return Text.assemble((f"{name:<7}", "bold"), (full, style), (empty, "dim"), text)


def bar(share: float, width: int, charset: Charset) -> tuple[str, str]:
    """Returns the full and the empty part of a bar."""
    steps = len(charset.parts)
    whole, part = divmod(round(share * width * steps), steps)
    full = charset.full * whole + (charset.parts[part] if part else "")
    return full, charset.empty * (width - len(full))


def sparks(ratios: Sequence[float | None], charset: Charset) -> str:
    """Returns a character for each ratio; a space for None."""
    most = len(charset.sparks) - 1
    return "".join(" " if ratio is None else charset.sparks[round(ratio * most)] for ratio in ratios)


def _ratio(history: History, place: ScreenContext) -> Text:
    drawn = sparks(history.ratios(place.width - _BESIDE_SPARKS), place.charset)
    text = f" {_percent(history.ratio_now())} now {_percent(history.ratio())} in {_span(history.seconds)}"
    return Text.assemble(("found  ", "bold"), (drawn, "green"), text)


def _span(seconds: float) -> str:
    """Returns for how long the counters were watched: a ratio says nothing about the time before."""
    return f"{round(seconds / 60)} min" if round(seconds) >= 60 else f"{round(max(seconds, 1))} s"


def _percent(ratio: float | None) -> str:
    return f"{'-':>7}" if ratio is None else f"{ratio:>7.1%}"


def _rates(history: History, width: int) -> Iterator[Text]:
    matches = history.rate(lambda s: s.lookups.lookups)
    found = history.rate(lambda s: s.lookups.found_tokens)
    missed = history.rate(lambda s: s.lookups.missed_tokens)
    yield _row(width, "tokens", found=_each(found), missed=_each(missed), matches=_each(matches))
    stored, loaded = history.rate(lambda s: s.tiers.memory.bytes_in), history.rate(lambda s: s.tiers.memory.bytes_out)
    yield _row(
        width, "engines", stored=_speed(stored), loaded=_speed(loaded), rejected=count(history.now.stores.refused)
    )
    if history.now.disk.standing is not Standing.NONE:
        written, read = history.rate(lambda s: s.tiers.disk.bytes_in), history.rate(lambda s: s.tiers.disk.bytes_out)
        yield _row(
            width, "disk", written=_speed(written), read=_speed(read), damaged=count(history.now.disk_work.damaged)
        )
        yield from _unwritten(history.now.disk_work, width)


def _unwritten(work: DiskWork, width: int) -> Iterator[Text]:
    if work.failed or work.skipped:
        yield _row(width, "", **{"failed": count(work.failed), "no budget": count(work.skipped)})


def _left(history: History, width: int) -> Iterator[Text]:
    now = history.now
    rate = history.rate(lambda s: s.tiers.memory.evictions)
    memory, stores, work = now.tiers.memory, now.stores, now.disk_work
    room = f"{count(memory.evictions)} ({_each(rate)})"
    yield _row(width, "dropped", evicted=room, flushed=count(memory.flushed), unwritten=count(work.lost))
    eviction = now.eviction
    if eviction.is_worth_a_line:
        by = f"{eviction.policy}, {eviction.state.value}"
        yield _row(width, "", **{"by": by, "left out": count(eviction.left_out), "switches": count(eviction.switches)})
    given_up = max(0, stores.doomed - stores.expired)
    if given_up or stores.expired or now.tiers.disk.evictions:
        disk = count(now.tiers.disk.evictions)
        yield _row(width, "", **{"from disk": disk, "abandoned": count(given_up), "expired": count(stores.expired)})


def _quotas(snapshot: Snapshot, width: int) -> Iterator[Text]:
    tiers = ["memory"] if snapshot.disk.standing is Standing.NONE else ["memory", "disk"]
    for at, tenant in enumerate(snapshot.tenants):
        cells = [f"{tier} {' '.join(quota_cells(getattr(tenant, tier))[1:])}" for tier in tiers]
        name = Text(tenant.quota)
        name.truncate(_QUOTA_NAME, overflow="ellipsis", pad=True)
        line = Text.assemble(
            (f"{'' if at else 'quotas':<9}", "bold"), f"{name.plain} ", "  ".join(f"{cell:<20}" for cell in cells)
        )
        yield _cut(line, width)


def _row(width: int, title: str, **cells: str) -> Text:
    """Returns a row whose cells lie below each other in all rows. Cells of a narrow screen follow each other."""
    line = Text(f"{title:<9}", style="bold")
    for name, cell in cells.items():
        wide = width >= WIDTH
        line += Text.assemble((f"{name:>9} " if wide else f"{name} ", "dim"), f"{cell:<13}" if wide else f"{cell}  ")
    line.rstrip()
    return _cut(line, width)


def _each(rate: float) -> str:
    return f"{_few(rate)}/s"


def _few(rate: float) -> str:
    """Returns a rate per second. A small one has a digit, so that it is not taken for none."""
    if 0 < rate < _SMALL:
        return f"{rate:.1f}" if rate >= _LEAST else f"<{_LEAST}"
    return count(round(rate))


def _speed(rate: float) -> str:
    return f"{format_size(round(rate))}/s"


def _clients(history: History, room: int, width: int) -> Iterator[Text]:
    clients = sorted(history.now.clients, key=lambda client: (-client.lookups, client.slot))
    if not clients:
        yield Text("No clients are attached.")
        return
    head = {"pid": "pid", "age": "age", "pins": "pins", "lookups": "match/s", "ratio": "in mem"}
    yield Text(_client_row("engine", head | {"loaded": "loaded/s", "stored": "stored/s"}, width), style="bold")
    for client in clients[:room]:
        yield Text(_client_row(_name_of(client), _client_cells(client, history), width))
    if len(clients) > room:
        yield Text(f"and {len(clients) - room} more", style="dim")


def _name_of(client: ClientStats) -> str:
    """Returns the name of a client, after its user if the daemon knows no PID of it: a long name is cut."""
    return ("" if client.pid else f"user {client.uid}: ") + (client.name or "-")


_CLIENT_COLUMNS = {"pid": 8, "age": 5, "pins": 7, "lookups": 8, "ratio": 7, "loaded": 12, "stored": 12}


def _client_row(name: str, cells: dict[str, str], width: int) -> str:
    narrow = width < WIDTH
    shown = {key: size for key, size in _CLIENT_COLUMNS.items() if not (narrow and key in ("age", "pins"))}
    text = Text(name)
    text.truncate(width - _BESIDE_NAME + _LEFT_OUT * narrow, overflow="ellipsis", pad=True)
    return f"{text.plain} " + "".join(f"{cells[key]:>{size}}" for key, size in shown.items())


def _client_cells(client: ClientStats, history: History) -> dict[str, str]:
    pages = client.hits + client.misses
    loaded, stored = (history.rate_of(client, get) for get in (lambda c: c.loaded_bytes, lambda c: c.stored_bytes))
    return {
        "pid": str(client.pid or f"slot {client.slot}"),
        "age": age(client.age_seconds),
        "pins": count(client.pins),
        "lookups": _few(history.rate_of(client, lambda c: c.lookups)),
        "ratio": f"{client.hits / pages:.1%}" if pages else "-",
        "loaded": _speed(loaded),
        "stored": _speed(stored),
    }


def _wrapped(text: str, style: str, width: int) -> Iterator[Text]:
    """Yields a text in as many lines as it needs, since its end says what to do."""
    for line in textwrap.wrap(text, width, subsequent_indent=_BELOW, break_on_hyphens=False):
        yield Text(line, style=style)


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line
