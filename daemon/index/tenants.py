"""Puts the quotas of tenants in force, and reports what they use and what they refuse."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Final

from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.quota import TenantQuota
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.shm._core import Owner
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

_BATCH: Final = 256  # pages evicted before other requests are handled
_CHECK_EVERY_S: Final = 1.0
_UNLIMITED: Final = TenantQuota("")


class Tenants:
    """The quotas in force. On the loop's thread only.

    Attributes:
        rejections: How many requests had pages refused because of a quota, by its pattern; of this daemon.
    """

    def __init__(self, owner: Owner, quotas: Sequence[TenantQuota]) -> None:
        self._owner = owner
        self._quotas: tuple[TenantQuota, ...] = (_UNLIMITED,)
        self.rejections: Counter[str] = Counter()
        self._due = 0.0
        self.follow(quotas)

    def follow(self, quotas: Sequence[TenantQuota]) -> None:
        """Applies other quotas from now on. Tenants above their maximum lose pages from the next poll on."""
        wanted = (_UNLIMITED, *quotas)
        if wanted == self._quotas:
            return
        shares = [share for each in wanted for tier in (each.arena, each.disk) for share in (tier.least, tier.most)]
        try:
            self._owner.set_quotas(array("d", shares), [quota.pattern for quota in quotas])
        except MemoryError:
            log.warning("no memory to apply quotas: the earlier ones stay in force", extra=event("quotas_failed"))
            return
        self._quotas = wanted
        self._due = 0.0

    def poll(self) -> None:
        """Evicts some pages of tenants above their maximum, if there are any. Called a few times a second."""
        if len(self._quotas) > 1 and loop_clock.now() >= self._due:
            pages = self._owner.trim(_BATCH)
            self._due = loop_clock.now() + (0 if pages == _BATCH else _CHECK_EVERY_S)

    def number(self, name: str) -> int:
        """Returns the tenant of the namespaces with this name; 0: they have no quota."""
        return self._owner.tenant_of(name) if len(self._quotas) > 1 else 0

    def why_refused(self, what: str) -> str:
        """Returns which quota is why pages of the last store were refused, and counts that; "" if none is.

        Args:
            what: What the quota's maximum does not allow.
        """
        at_maximum, protected = self._owner.quota_refusal()
        named = [quota.pattern for at, quota in enumerate(self._quotas) if at == at_maximum or protected >> at & 1]
        named = [pattern for pattern in named if pattern]
        self.rejections.update(named)
        if at_maximum:
            most = self._quotas[at_maximum].arena.most
            return f'the quota "{named[0]}" has a maximum of {most:.0%} of the arena: {what}'
        if protected:
            quoted = ", ".join(f'"{pattern}"' for pattern in named)
            return f"no page can be evicted: all are in use, or the minimum of a quota protects them: {quoted}"
        return ""

    def report(self) -> tuple[TenantUse, ...]:
        """Returns what each tenant may have and has, those without a quota last; nothing without quotas."""
        if len(self._quotas) == 1:
            return ()
        uses = [_use(quota, *frames) for quota, frames in zip(self._quotas, self._owner.tenants(), strict=True)]
        return (*uses[1:], uses[0])


def _use(quota: TenantQuota, arena_frames: int, disk_frames: int) -> TenantUse:
    return TenantUse(
        pattern=quota.pattern,
        arena_minimum=quota.arena.least,
        arena_maximum=quota.arena.most,
        disk_minimum=quota.disk.least,
        disk_maximum=quota.disk.most,
        arena_frames=arena_frames,
        disk_frames=disk_frames,
    )
