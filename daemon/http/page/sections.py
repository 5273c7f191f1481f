"""The sections of the page: what each says, in words beside each picture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from pagetier.daemon.common.lookup_window import LOOKUP_WINDOW_S
from pagetier.daemon.http.page.charts import TIERS, bar, curve_chart, hour_chart, swatch
from pagetier.daemon.http.page.disk_and_fleet import disk, fleet
from pagetier.daemon.http.page.html import Html, element, name_of, section, table
from pagetier.daemon.http.page.remedies import remedy
from pagetier.daemon.http.page.view import CacheView
from pagetier.daemon.stats.miss_reasons import miss_reasons
from pagetier.daemon.stats.size_advice import AbsentTokens, SizeAdvice
from pagetier.daemon.stats.snapshot import ClientStats, NamespaceStats, PageTier
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm.units import counted, format_size, spell_duration

_ABOUT: Final = {"memory": "memory", "disk": "disk", "fleet": "fleet", "missed": "not found"}


def sections(view: CacheView) -> Iterator[Html]:
    """Yields the sections in the order in which an administrator asks."""
    made: tuple[Callable[[CacheView], Html], ...] = (_tiers, _hour, _curve, _missed, disk, fleet, _namespaces, _engines)
    for section_of in (*made, _events):
        yield section_of(view)


def _tiers(view: CacheView) -> Html:
    snapshot = view.snapshot
    clients = counted(len(snapshot.clients), "client")
    state = f"{snapshot.daemon.phase_text}, {clients}, incarnation {snapshot.daemon.incarnation}"
    parts = [element("p", f"{state}; at {_moment(view.at)}"), *_tier("memory", snapshot.tiers.memory)]
    if snapshot.disk.standing is not Standing.NONE:
        parts += _tier("disk", snapshot.tiers.disk)
    parts.append(element("p", snapshot.eviction.sentence, class_="dim"))
    if snapshot.hints.kept_bytes:
        parts.append(element("p", f"{format_size(snapshot.hints.kept_bytes)} are kept in memory by request"))
    if snapshot.frame_advice:
        parts.append(element("p", snapshot.frame_advice, class_="bad"))
    return section("Tiers", *parts)


def _tier(name: str, tier: PageTier) -> Iterator[Html]:
    share = min(1.0, tier.used / tier.room) if tier.room else 0.0
    sizes = f"{format_size(tier.used)} of {format_size(tier.room)} ({share:.0%})"
    evicted = f", {tier.evictions:,} evicted so far" if tier.evictions else ""
    yield element("p", element("b", name), f" {sizes}, {tier.pages_text}{evicted}", bar(share, name))


def _hour(view: CacheView) -> Html:
    total = view.hour.total
    began = f"Of the tokens that engines lacked, since {_moment(view.hour.began)}, when the HTTP process began."
    if not total.tokens:
        return section("Hits by tier in the last hour", element("p", began), element("p", "No lookup was counted."))
    shares = {tier: tokens / total.tokens for tier, tokens in zip(TIERS, total, strict=False)}
    about = ", ".join(f"{share:.1%} {_ABOUT[tier]}" for tier, share in shares.items())
    legend = (
        element("li", swatch(tier), f"{_ABOUT[tier]} {share:.1%}, {counted(tokens, 'token')}")
        for (tier, share), tokens in zip(shares.items(), total, strict=False)
        if tokens
    )
    chart = hour_chart(view.hour.minutes, f"Tokens of each minute by the tier that gave them; in all {about}")
    return section("Hits by tier in the last hour", chart, element("ul", *legend), element("p", began, class_="dim"))


def _curve(view: CacheView) -> Html:
    advice = view.advice
    if advice is None:
        return section("Hit ratio by size", element("p", "Nothing is predicted before lookups that stores follow."))
    total, bound = advice.total, "at least (LRU)" if advice.total.memory[0].lower_bound else "LRU"
    now = f"now: {total.hit_ratio:.1%} of the prompts' tokens, with {_sizes(advice)}"
    about = f"Predicted hit ratio over the size of memory, {bound}; {now}"
    legend = [
        element("li", swatch("curve"), f"predicted without a disk, {bound}"),
        element("li", swatch("memory"), now),
    ]
    if advice.knee_bytes:
        times = f"{format_size(advice.knee_bytes)} ({advice.knee_bytes / advice.arena_bytes:.2g}x)"
        legend.append(element("li", f"knee at {times}: beyond it, more memory helps less"))
    legend.append(element("li", f"dashed: an endless cache would have {total.endless_hit_ratio:.1%}"))
    whole = element("p", "Prompts count whole here: also tokens that engines had in their own caches.", class_="dim")
    warning = [element("p", f"Warning: {advice.warning}", class_="bad")] if advice.warning else []
    chart = curve_chart(advice, about)
    return section("Hit ratio by size", chart, element("ul", *legend), whole, *warning, _age(view))


def _sizes(advice: SizeAdvice) -> str:
    on_disk = f" and {format_size(advice.disk_bytes)} of disk" if advice.disk_bytes else ""
    return f"{format_size(advice.arena_bytes)} of memory{on_disk}"


def _missed(view: CacheView) -> Html:
    title, advice = "Why tokens were not found", view.advice
    reasons = miss_reasons(AbsentTokens() if advice is None else advice.total.absent, view.snapshot)
    if not reasons:
        return section(title, element("p", "No lookup missed a page."))
    rows = (element("p", f"{share:.1%} {about}", bar(share, "curve")) for about, share in reasons)
    return section(title, *rows, _age(view))


def _age(view: CacheView) -> Html:
    return element("p", f"Lookups {spell_duration(LOOKUP_WINDOW_S)} ago count 1/e.", class_="dim")


def _namespaces(view: CacheView) -> Html:
    spaces, others = view.snapshot.namespaces, view.others
    if not spaces:
        return section("Namespaces", element("p", "No namespace has pages."))
    rows = [_namespace(name_of(space.label), space) for space in spaces]
    if others.number:
        rows.append((f"{others.number:,} others", format_size(others.bytes), format_size(others.disk_bytes), "", ""))
    head = ("namespace", "in memory", "on disk", "pages in memory", "pages on disk")
    return section("Namespaces", table("Namespaces by bytes", head, rows), width="wide")


def _namespace(name: Html, space: NamespaceStats) -> tuple[str | Html, ...]:
    sizes = format_size(space.bytes), format_size(space.disk_bytes)
    return name, *sizes, f"{space.pages:,}", f"{space.disk_pages:,}"


def _engines(view: CacheView) -> Html:
    clients = sorted(view.snapshot.clients, key=lambda client: (-client.pinned_bytes, client.slot))
    if not clients:
        return section("Engines", element("p", "No engine is attached."))
    head = ("engine", "pinned", "pins", "found in memory", "loaded", "stored", "cut short")
    about = "Pins keep pages in memory. Cut short: matches that ended at arena.process_share."
    return section(
        "Engines",
        table("Engines and what they pin", head, map(_engine, clients)),
        element("p", about, class_="dim"),
        width="wide",
    )


def _engine(client: ClientStats) -> tuple[str | Html, ...]:
    pages = client.hits + client.misses
    process = f"pid {client.pid}" if client.pid else f"slot {client.slot}"
    unjudged = " (nothing says whether it lives: pagetier reclaim)" if client.unjudged else ""
    name = element("span", name_of(client.name or "-"), f", user {client.uid}, {process}{unjudged}")
    return (
        name,
        format_size(client.pinned_bytes),
        f"{client.pins:,}",
        f"{client.hits / pages:.1%}" if pages else "-",
        format_size(client.loaded_bytes),
        format_size(client.stored_bytes),
        f"{client.bounded:,}",
    )


def _events(view: CacheView) -> Html:
    items = [
        element("li", *_event(event.event, event.level, event.text, event.count, event.at), class_="event")
        for event in view.events
    ]
    shown = element("ul", *items) if items else element("p", "Nothing notable was logged.")
    about = "The last line of each kind that the daemon has logged since it serves HTTP, without those of its workers."
    return section("Last events", shown, element("p", about, class_="dim"), width="wide")


def _event(kind: str, level: str, text: str, count: int, at: float) -> Iterator[str | Html]:
    yield element("span", f"{_moment(at)} {level} {kind}", class_="dim" if level == "info" else "bad")
    yield f" {text}"
    if count > 1:
        yield element("span", f" ({count:,} times)", class_="dim")
    if advised := remedy(kind, level):
        yield element("p", element("b", "What to do: "), advised)


def _moment(seconds: float) -> str:
    return time.strftime("%m-%d %H:%M:%S UTC", time.gmtime(seconds))
