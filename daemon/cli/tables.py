"""Renders the state of a cache as tables for 80 columns, in color on a terminal."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pagetier.daemon.cli.tier_text import at_opening, synced
from pagetier.daemon.stats.frame_advice import compression_text, stored_text
from pagetier.daemon.stats.lookup_stats import LookupStats
from pagetier.daemon.stats.miss_reasons import miss_reasons
from pagetier.daemon.stats.snapshot import ClientStats, DiskWork, PageTier, Snapshot, TierQuota
from pagetier.daemon.status.disk_report import DeviceReport, DiskReport, Standing
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.shm.units import counted, format_size


def console_for_people(width: int | None = None) -> Console:
    """Returns a console on stdout. width: None for the terminal's. $COLUMNS and $LINES are ignored if they are 0."""
    for name in ("COLUMNS", "LINES"):
        if os.environ.get(name, "").strip("0") == "":
            os.environ.pop(name, None)
    return Console(width=width, highlight=False, markup=False, emoji=False)


def disk_lines(disk: DiskReport, work: DiskWork) -> Iterator[str]:
    """Yields the disk tier's state, location and problems, a line each."""
    yield f"Disk tier in {disk.folder}: {disk.state}{f', {disk.trouble}' if disk.trouble else ''}"
    if disk.opened:
        yield f"{at_opening(disk)}; {synced(disk)}; damaged pages dropped: {disk.damaged:,}"
        yield (
            f"files use {format_size(disk.file_bytes)} of {format_size(disk.cap)};"
            f" the file system has {format_size(disk.disk_free)} free; {format_size(disk.device_bytes)} written"
        )
    if disk.note:
        yield disk.note
    unwritten = (
        (work.lost, "evicted before they were written"),
        (work.failed, "that could not be written"),
        (work.skipped, "not written, since disk.budget was spent"),
    )
    if reasons := "; ".join(f"{counted(pages, 'page')} {why}" for pages, why in unwritten if pages):
        yield reasons
    if disk.budget is not None:
        left, per_day = format_size(disk.budget.left), format_size(disk.budget.per_day)
        yield f"{left} of {per_day} per day may be written now; {format_size(disk.budget.skipped_bytes)} not written"


def fleet_line(fleet: FleetStatus) -> str:
    """Returns the state of the fleet, what it answered and what was moved; "" without one."""
    if fleet.standing == "none":
        return ""
    state = "not asked, since it does not answer" if fleet.breaker_open else fleet.standing
    trouble = f" ({fleet.trouble})" if fleet.trouble else ""
    asked = fleet.found + fleet.absent + fleet.late + fleet.errors
    errors = f", {fleet.errors:,} failed" if fleet.errors else ""
    questions = f"{asked:,} questions, {fleet.found:,} found, {fleet.late:,} late{errors}"
    dropped = f", {format_size(fleet.dropped_bytes)} dropped" if fleet.dropped_bytes else ""
    compressed = f", {format_size(fleet.stored_bytes)} compressed" if fleet.stored_bytes < fleet.written_bytes else ""
    moved = f"read {format_size(fleet.read_bytes)}, wrote {format_size(fleet.written_bytes)}{compressed}"
    present = f" ({counted(fleet.present, 'page')} present already{dropped})"
    unwritten = _unwritten(fleet.waiting, "to be written again", fleet.write_trouble)
    unwritten += _unwritten(fleet.failed, "given up", fleet.given_up)
    faults = f"{fleet.damaged:,} damaged; breaker opened {fleet.openings} times"
    return f"Fleet {fleet.url}: {state}{trouble}; {questions}; {moved}{present}{unwritten}; {faults}"


def _unwritten(pages: int, what: str, why: str) -> str:
    return f"; {counted(pages, 'page')} {what} ({why})" if pages else ""


def missed_line(snapshot: Snapshot) -> str:
    """Returns why tokens were not found, the commonest reason first; "" if none was missed."""
    reasons = ", ".join(f"{share:.0%} {about}" for about, share in miss_reasons(snapshot.absent, snapshot))
    return f"Not found: {reasons}" if reasons else ""


def device_line(device: DeviceReport, frame_bytes: int) -> str:
    """Returns what a device has, and what is wrong with it."""
    used, room = format_size(device.used_frames * frame_bytes), format_size(device.room_frames * frame_bytes)
    shorter = compression_text(device.bytes, device.stored_bytes)
    trouble = f": {device.trouble}" if device.trouble else ""
    return f"{device.folder} {device.state}, {counted(device.pages, 'page')}, {used} of {room}{shorter}{trouble}"


_COLUMNS = 80
_NAME = 13  # width of the longest row label
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def show_snapshot(snapshot: Snapshot, socket: Path) -> None:
    """Prints the snapshot on stdout."""
    console = console_for_people()
    console.print(Text(_headline(snapshot, socket)), soft_wrap=True)
    for table in _tables(snapshot):
        console.print()
        text = _wrapped(table, console.width) if isinstance(table, str) else table
        _console_for(table, console).print(text, soft_wrap=isinstance(text, str))


def _wrapped(text: str, width: int) -> str:
    """Returns lines of at most `width` columns, without the spaces that rich would fill them up with."""
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False) for line in text.splitlines()
    )


def _console_for(table: RenderableType, console: Console) -> Console:
    """Returns this console, or one of 80 columns if it is too narrow for the table's names."""
    if not isinstance(table, Table) or _least_width(table, console) <= console.width:
        return console
    return console_for_people(max(_COLUMNS, console.width))


def _least_width(table: Table, console: Console) -> int:
    """Returns the width that the table needs if its names are folded and its numbers are not."""
    name = table.columns[0]
    name.width = _NAME
    try:
        return console.measure(table, options=console.options.update(width=10 * _COLUMNS)).maximum
    finally:
        name.width = None


def _tables(snapshot: Snapshot) -> Iterator[RenderableType]:
    lookups = snapshot.lookups
    found = f"{counted(lookups.lookups, 'lookup')}: {lookups.text}" if lookups.lookups else "No lookups yet"
    yield f"{found}\n{_what_counts(snapshot)}"
    yield _tiers(snapshot)
    yield from filter(None, _notes(snapshot))
    if _has_disk(snapshot):
        devices = snapshot.disk.devices if snapshot.disk.several else ()
        lines = (device_line(device, snapshot.daemon.frame_bytes) for device in devices)
        yield "\n  ".join([*disk_lines(snapshot.disk, snapshot.disk_work), *lines])
    if fleet := fleet_line(snapshot.fleet):
        yield fleet
    if snapshot.tenants:
        yield _tenants(snapshot)
    if snapshot.namespaces:
        yield _namespaces(snapshot)
    yield _clients(snapshot.clients) if snapshot.clients else "No clients are attached."


def _what_counts(snapshot: Snapshot) -> str:
    """Returns what the first line, hits, misses and hit ratios count, since they differ."""
    memory = (
        "Tokens that vLLM has in its own prefix cache count below only: as misses, and as not in time, if memory lacks"
        " them."
        " Hits and misses of memory are pages at the first match of each request, and so is their ratio."
    )
    disk = (
        "Those of the disk are pages to read, in time or not; its hit ratio is that of the tokens that memory lacked."
    )
    return f"{memory} {disk}" if _has_disk(snapshot) else memory


def _notes(snapshot: Snapshot) -> Iterator[str]:
    """Yields what there is to say besides the tables; "" for what need not be said."""
    shares = snapshot.huge_pages.text
    yield f"Huge pages: {shares}" if shares else ""
    yield snapshot.frame_advice
    yield snapshot.eviction.text if snapshot.eviction.is_worth_a_line else ""
    yield missed_line(snapshot)
    yield snapshot.hints.text


def _headline(snapshot: Snapshot, socket: Path) -> str:
    daemon, stores = snapshot.daemon, snapshot.stores
    writing = f", {counted(stores.writing, 'page')} being written" if stores.writing else ""
    refused = f", {counted(stores.refused, 'page')} rejected so far" if stores.refused else ""
    return f"pagetier on {socket}, {daemon.phase_text}, incarnation {daemon.incarnation}{writing}{refused}"


def _table(title: str, *columns: str) -> Table:
    """Returns an empty table. Its first column holds names, which are never cut; the others hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for at, column in enumerate((title, *columns)):
        table.add_column(column, justify="left" if at == 0 else "right", overflow="fold", no_wrap=at > 0)
    return table


def _tiers(snapshot: Snapshot) -> Table:
    """Returns the table of tiers, with one column for each: more tiers still fit into 80 columns."""
    tiers = {name: getattr(snapshot.tiers, name) for name in snapshot.tiers.__struct_fields__}
    there = {name: tier for name, tier in tiers.items() if tier.cap}
    table = _table("Tier", *there)
    cells = [_tier_cells(tier, _ratios(name, tier, snapshot.lookups)) for name, tier in there.items()]
    for label in cells[0]:
        table.add_row(label, *(column[label] for column in cells))
    return table


def _ratios(name: str, tier: PageTier, lookups: LookupStats) -> dict[str, str]:
    """Returns the cells with ratios. The disk's hits and misses are reads, since only what it has is read from it."""
    if name == "memory":
        return {"hit ratio": _percent(tier.hit_ratio), "reads in time": "-"}
    return {"hit ratio": _percent(lookups.disk_hit_ratio), "reads in time": _percent(tier.hit_ratio)}


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"


def _tier_cells(tier: PageTier, ratios: dict[str, str]) -> dict[str, str]:
    return {
        "pages": f"{tier.pages:,}",
        "bytes": format_size(tier.bytes),
        "frames in use": format_size(tier.used),
        "compressed": f"{tier.bytes / tier.used:.2f} x" if tier.bytes > tier.used > 0 else "-",
        "room": format_size(tier.room),
        "room in pages": "-" if tier.room_pages is None else f"{tier.room_pages:,}",
        "cap": format_size(tier.cap),
        "hits": f"{tier.hits:,}",
        "misses": f"{tier.misses:,}",
        **ratios,
        "evictions": f"{tier.evictions:,}",
        "moved in": format_size(tier.bytes_in),
        "moved out": format_size(tier.bytes_out),
    }


def _has_disk(snapshot: Snapshot) -> bool:
    return snapshot.disk.standing is not Standing.NONE


def _namespaces(snapshot: Snapshot) -> Table:
    compressed = any(device.slot_bytes for device in snapshot.disk.devices)
    on_disk = ["on disk", "compressed"][: _has_disk(snapshot) + compressed]
    table = _table("Namespace", "pages", "bytes", *on_disk, "tokens a page")
    for space in sorted(snapshot.namespaces, key=lambda space: -space.bytes):
        raw = format_size(space.disk_bytes) if space.disk_pages else "-"
        disk_cells = (raw, stored_text(space.disk_bytes, space.disk_stored))[: len(on_disk)]
        table.add_row(space.label, f"{space.pages:,}", format_size(space.bytes), *disk_cells, f"{space.page_tokens:,}")
    return table


def _tenants(snapshot: Snapshot) -> Table:
    tiers = ["memory", "disk"] if _has_disk(snapshot) else ["memory"]
    table = _table("Quota", *(column for tier in tiers for column in (tier, "share", "allowed")))
    for tenant in snapshot.tenants:
        table.add_row(tenant.quota, *(cell for tier in tiers for cell in quota_cells(getattr(tenant, tier))))
    return table


def quota_cells(tier: TierQuota) -> tuple[str, str, str]:
    """Returns what a tenant has of a tier, as bytes and as a share, and from where to where its quota goes."""
    return format_size(tier.used), f"{tier.share:.0%}", f"{100 * tier.minimum:.0f}-{tier.maximum:.0%}"


def _clients(clients: Sequence[ClientStats]) -> Table:
    table = _table("Client", "slot", "pid", "uid", "age", "pins", "hits", "misses", "loaded", "stored")
    for client in clients:
        table.add_row(
            client.name or "-",
            str(client.slot),
            str(client.pid or "-"),
            str(client.uid),
            age(client.age_seconds),
            count(client.pins),
            count(client.hits),
            count(client.misses),
            format_size(client.loaded_bytes),
            format_size(client.stored_bytes),
        )
    return table


def count(number: int) -> str:
    """Returns a number in at most six characters: exact below 100,000, then "123k", "1.2M"."""
    if number < 100_000:
        return f"{number:,}"
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= factor:
            return f"{number / factor:.1f}{unit}"
    return f"{number // 1000}k"


def age(seconds: float) -> str:
    """Returns a time span in its largest unit: "45s", "12m", "3h", "8d"."""
    for factor, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= factor:
            return f"{seconds / factor:.0f}{unit}"
    return f"{seconds:.0f}s"
