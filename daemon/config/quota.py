"""The quotas of tenants: patterns of namespaces' names, and the shares that each may have and keeps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from pagetier.daemon.config.value_types import Setting
from pagetier.shm._core import TENANTS
from pagetier.shm.units import shown

MOST_MINIMUMS: Final = 0.8
_MOST_BYTES: Final = 100  # of a pattern
_EXAMPLE: Final = '"llama-*" = { arena = [0.2, 0.5], disk = [0, 0.4] }'
_NONE: Final = "none"
_RANGE: Final = re.compile(r"\s*(arena|disk)\s+([0-9.]+%?)\s*-\s*([0-9.]+%?)\s*", re.ASCII)
_NUMBER: Final = re.compile(r"[01](\.[0-9]{1,20})?", re.ASCII)
_PERCENT: Final = re.compile(r"([0-9]{1,3}(\.[0-9]{1,20})?)%", re.ASCII)
_DIGITS: Final = 9  # of a share, behind the point


def _plain(share: float) -> str:
    return f"{share:.{_DIGITS}f}".rstrip("0").rstrip(".") or "0"


class ShareRange(msgspec.Struct, frozen=True):
    """A minimum and a maximum, as shares of a tier."""

    least: float = 0.0
    most: float = 1.0

    def __str__(self) -> str:
        return f"{_plain(self.least)}-{_plain(self.most)}"


class TenantQuota(msgspec.Struct, frozen=True):
    """The quota of the namespaces whose name or model a pattern matches, and no pattern before it."""

    pattern: str
    arena: ShareRange = ShareRange()
    disk: ShareRange = ShareRange()

    def __str__(self) -> str:
        disk = f", disk {self.disk}" if self.disk != ShareRange() else ""
        return f"{self.pattern}: arena {self.arena}{disk}"


def quota_setting(help: str) -> Setting:
    """Returns a setting for quotas: a table in a file, and one text in variables and flags."""

    def read(raw: object) -> tuple[TenantQuota, ...]:
        items = _items_of_text(raw) if isinstance(raw, str) else list(raw.items()) if isinstance(raw, dict) else None
        if items is None:
            raise ValueError(f"{shown(raw)} is not a table of quotas, such as {_EXAMPLE}")
        quotas = tuple(_quota(pattern, table) for pattern, table in items)
        if wrong := next(_wrong_together(quotas), ""):
            raise ValueError(wrong)
        return quotas

    return Setting(read=read, show=_show, metavar="QUOTAS", help=help)


def _show(quotas: Iterable[TenantQuota]) -> str:
    return "; ".join(map(str, quotas)) or _NONE


def _items_of_text(text: str) -> list[tuple[str, object]]:
    if not text.strip():
        raise ValueError(f'{shown(text)} names no quota: write "{_NONE}" for none')
    return [] if text.strip() == _NONE else [_item_of_text(item) for item in text.split(";")]


def _item_of_text(item: str) -> tuple[str, object]:
    pattern, _, ranges = item.rpartition(":")
    found = [_RANGE.fullmatch(each) for each in ranges.split(",")]
    shares = {each[1]: [_number(each[2]), _number(each[3])] for each in found if each}
    if not pattern.strip() or len(shares) < len(found):
        raise ValueError(f'{shown(item.strip())} is not a quota, such as "llama-*: arena 0.2-0.5, disk 0-0.4"')
    return pattern.strip(), shares


def _number(text: str) -> float | str:
    return float(text) if _NUMBER.fullmatch(text) else text


def _quota(pattern: str, table: object) -> TenantQuota:
    if not pattern.strip() or not pattern.isprintable() or ";" in pattern or len(pattern.encode()) > _MOST_BYTES:
        raise ValueError(f"{shown(pattern)} is not a pattern: 1 to {_MOST_BYTES} printable bytes without a semicolon")
    if pattern != pattern.strip():
        raise ValueError(f"the pattern {shown(pattern)} begins or ends with a space, as no namespace does: remove it")
    if not isinstance(table, dict):
        raise ValueError(f"the quota {shown(pattern)} is not a table, such as {_EXAMPLE}")
    if unknown := next((key for key in table if key not in ("arena", "disk")), None):
        raise ValueError(f"the quota {shown(pattern)} has {shown(unknown)}: only arena and disk can be limited")
    if not table:
        raise ValueError(f"the quota {shown(pattern)} names nothing: set arena, disk or both")
    return TenantQuota(pattern, **{tier: _range(pattern, tier, raw) for tier, raw in table.items()})


def _range(pattern: str, tier: str, raw: object) -> ShareRange:
    if not isinstance(raw, list) or len(raw) != 2:
        raise ValueError(f"the quota {shown(pattern)} has {tier} = {shown(raw)}: a minimum and a maximum are needed")
    least, most = (_share(pattern, tier, each) for each in raw)
    if least > most:
        raise ValueError(
            f"the quota {shown(pattern)} has a minimum of {tier} above its maximum: {least:g} and {most:g}"
        )
    if not most:
        raise ValueError(f"the quota {shown(pattern)} has a maximum of 0 for {tier}: nothing could be stored")
    return ShareRange(least, most)


def _share(pattern: str, tier: str, raw: object) -> float:
    percent = _PERCENT.fullmatch(raw) if isinstance(raw, str) else None
    share = float(percent[1]) / 100 if percent else raw
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        about = 'a share is a number from 0 to 1, or a percentage such as "30%"'
        raise ValueError(f"the quota {shown(pattern)} has {tier} = {shown(raw)}: {about}")
    return round(float(share), _DIGITS)


def _wrong_together(quotas: tuple[TenantQuota, ...]) -> Iterator[str]:
    """Yields what is wrong with quotas that are right each."""
    if len(quotas) >= TENANTS:
        yield f"{len(quotas)} quotas are too many: at most {TENANTS - 1}"
    for at, quota in enumerate(quotas):
        before = [other.pattern for other in quotas[:at]]
        if hides := next((pattern for pattern in before if pattern in (quota.pattern, "*")), None):
            yield f"the quota {shown(quota.pattern)} names nothing: {shown(hides)} before it has all its namespaces"
    for tier in ("arena", "disk"):
        total = math.fsum(getattr(quota, tier).least for quota in quotas)
        if round(total, 6) > MOST_MINIMUMS:
            yield f"the minimums of {tier} add up to {total:g}: at most {MOST_MINIMUMS}"
