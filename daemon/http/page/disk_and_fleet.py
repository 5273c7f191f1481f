"""The sections of the disk tier, with its wear and its write budget, and of the fleet, with its breaker."""

from __future__ import annotations

from collections.abc import Iterator

from pagetier.daemon.http.page.charts import bar
from pagetier.daemon.http.page.html import Html, element, facts, name_of, section, table
from pagetier.daemon.http.page.token_history import MINUTES
from pagetier.daemon.http.page.view import CacheView, LastHour
from pagetier.daemon.status.disk_report import BudgetReport, DeviceReport, DiskReport, Standing
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.shm.units import counted, format_size


def disk(view: CacheView) -> Html:
    """Returns the section of the disk tier."""
    report, work = view.snapshot.disk, view.snapshot.disk_work
    if report.standing is Standing.NONE:
        return section("Disk", element("p", "No disk tier is configured."))
    lost = f"{counted(work.lost, 'page')} left memory before they were written" if work.lost else ""
    skipped = f"{counted(work.skipped, 'page')} not written, since disk.budget was spent" if work.skipped else ""
    failed: str | Html = (
        element("span", f"{counted(work.failed, 'page')} could not be written", class_="bad") if work.failed else ""
    )
    known: dict[str, str | Html] = {
        "state": _state(report.state, report.trouble),
        "files": f"{format_size(report.file_bytes)} of {format_size(report.cap)} in {report.folder}",
        "file system": f"{format_size(report.disk_free)} of {format_size(report.disk_total)} free",
        "written": f"{format_size(report.device_bytes)} by this daemon{_wear(report, view.hour)}",
        "damaged": f"{counted(work.damaged, 'page')} failed the checksum" if work.damaged else "",
        "lost": lost,
        "failed": failed,
        "skipped": skipped,
        "note": report.note,
    }
    return section("Disk", facts(known), *_budget(report.budget), *_devices(report, view.snapshot.daemon.frame_bytes))


def _state(standing: str, trouble: str) -> Html:
    is_well = standing == "open" and not trouble
    return element("span", f"{standing}: {trouble}" if trouble else standing, class_="" if is_well else "bad")


def _wear(report: DiskReport, hour: LastHour) -> str:
    """Returns what a day wears the disk by, at the rate of the last hour or since the start; "" in the first minute."""
    if hour.written_per_day is None or not report.cap:
        return ""
    minutes = len(hour.minutes) - 1  # the last one is not over
    span = "of the last hour" if len(hour.minutes) >= MINUTES else f"since the start ({counted(minutes, 'minute')})"
    times = f"{hour.written_per_day / report.cap:,.1f} times its size"
    return f"; at the rate {span} {format_size(round(hour.written_per_day))} a day, {times}"


def _budget(budget: BudgetReport | None) -> Iterator[Html]:
    if budget is None:
        return
    left = max(0.0, budget.left / budget.per_day) if budget.per_day else 0.0
    amounts = f"{format_size(budget.left)} of {format_size(budget.per_day)} a day may be written now"
    skipped = f"; {format_size(budget.skipped_bytes)} were not written" if budget.skipped_bytes else ""
    yield element("p", element("b", "budget"), f" {amounts}{skipped}", bar(left, "disk"))


def _devices(report: DiskReport, frame_bytes: int) -> Iterator[Html]:
    if report.several:
        head = ("device", "state", "pages", "used", "room", "written")
        yield table("Devices of the disk tier", head, (_device(each, frame_bytes) for each in report.devices))


def _device(device: DeviceReport, frame_bytes: int) -> tuple[str | Html, ...]:
    return (
        name_of(device.folder),
        _state(device.state, device.trouble),
        f"{device.pages:,}",
        format_size(device.used_frames * frame_bytes),
        format_size(device.room_frames * frame_bytes),
        format_size(device.device_bytes),
    )


def fleet(view: CacheView) -> Html:
    """Returns the section of the fleet."""
    status = view.snapshot.fleet
    if status.standing == "none":
        return section("Fleet", element("p", "No fleet is configured."))
    asked = status.found + status.absent + status.late + status.errors
    answers = f"{status.found:,} found, {status.late:,} late, {status.errors:,} failed"
    known: dict[str, str | Html] = {
        "store": status.url,
        "state": _state(status.standing, status.trouble),
        "breaker": _breaker(status),
        "questions": f"{asked:,}: {answers}" if asked else "none so far: the connectors of engines ask",
        "moved": f"{format_size(status.read_bytes)} read, {format_size(status.written_bytes)} written",
        "compressed": f"to {format_size(status.stored_bytes)}" if status.stored_bytes < status.written_bytes else "",
        "queue": f"{format_size(status.queued_bytes)} wait to be written" if status.queued_bytes else "",
        "written again": f"{counted(status.waiting, 'page')}: {status.write_trouble}" if status.waiting else "",
        "given up": f"{counted(status.failed, 'page')}: {status.given_up}" if status.failed else "",
        "damaged": f"{counted(status.damaged, 'object')}" if status.damaged else "",
        "other key": f"{counted(status.foreign, 'object')}" if status.foreign else "",
        "note": status.note,
    }
    return section("Fleet", facts(known))


def _breaker(status: FleetStatus) -> Html:
    opened = f"opened {counted(status.openings, 'time')} so far"
    if status.breaker_open:
        return element("span", f"open: the fleet does not answer and is not asked; {opened}", class_="bad")
    return element("span", f"closed, {opened}")
