"""Hints of engines and operators: checked, bounded and counted."""

from __future__ import annotations

from typing import Final

import msgspec

from pagetier.daemon.common.namespaces import means
from pagetier.daemon.config.schema import EvictOptions
from pagetier.daemon.status.hint_report import HintReport
from pagetier.shm._core import NO_ENTRY, HintKind, Owner
from pagetier.shm.failpoints import point
from pagetier.shm.message_codec import nanoseconds
from pagetier.shm.page_rows import PAGE_KEYS, PAGE_REQUESTS
from pagetier.shm.protocol import HINT_KEYS, HintPages, PagesHinted, Reserve

_KINDS: Final = frozenset(HintKind)
_LRU: Final = 'with evict.policy = "lru" hints have no effect'
_LRU_KEEPS: Final = 'with evict.policy = "lru" no page is kept'
_TO_LEARN: Final = 'set evict.policy = "cadence" and reload the configuration'
EVERY_USER: Final = NO_ENTRY
"""Instead of a user: a manager may end what any user keeps."""


class Hints:
    """Gives hints to pages. A wrong hint has no effect and is counted. On the loop's thread only."""

    def __init__(self, owner: Owner, options: EvictOptions) -> None:
        self._owner = owner
        self._frames = owner.header().frames
        self._frame_bytes = owner.header().frame_bytes
        self._counts = HintReport()
        self.follow(options)

    def follow(self, options: EvictOptions) -> None:
        """Applies another share from now on: keeps that exceed it end."""
        self._most = int(self._frames * options.keep_share)
        self._owner.keep_at_most(self._most)

    @property
    def report(self) -> HintReport:
        """The counters, and what is kept now."""
        kept = self._owner.kept()
        return msgspec.structs.replace(
            self._counts, kept_bytes=kept.frames * self._frame_bytes, keeps_ended_early=kept.ended_early
        )

    def give(self, user: int, request: HintPages) -> PagesHinted:
        """Gives a hint to pages.

        Args:
            user: The user who sent the request; EVERY_USER for a manager who ends the keep of pages.
            request: The pages and the hint.

        Returns:
            The number of pages, and of those that have the hint now.
        """
        if why := _wrong(request):
            self._count(wrong=1)
            return PagesHinted(request.number, 0, 0, trouble=why)
        kind, ttl_ns, named = HintKind(request.hint), nanoseconds(request.ttl), PAGE_KEYS.count(request.keys)
        pages, applied = named, 0
        for space in self._spaces(request.namespace):
            keys = request.keys or self._owner.keys_in_memory(space)
            pages += 0 if named else PAGE_KEYS.count(keys)
            applied += self._give(user, kind, ttl_ns, space, keys)
        point("hints.given")
        self._note(pages, applied)
        return PagesHinted(request.number, pages, applied, self.report.kept_bytes, self._why_ignored(kind))

    def checked(self, request: Reserve) -> Reserve:
        """Returns a store without its hint if that is wrong, and counts the hint."""
        if not request.hint:
            return request
        if request.hint not in _KINDS - {HintKind.UNKEEP} or _wrong_ttl(request.hint_ttl):
            self._count(wrong=1)
            return msgspec.structs.replace(request, hint=HintKind.NONE, hint_ttl=0.0)
        if request.hint != HintKind.KEEP:
            pages = PAGE_REQUESTS.count(request.pages)
            self._note(pages, pages * self._owner.learns)
        return request

    def keep_stored(self, slot: int, request: Reserve, pages: int) -> None:
        """Keeps the first `pages` pages of a store that asks for it, for the user of the slot."""
        if request.hint != HintKind.KEEP:
            return
        user = next(attachment.uid for attachment in self._owner.attachments() if attachment.slot == slot)
        keys = b"".join(page.key for page in PAGE_REQUESTS.read(PAGE_REQUESTS.first(request.pages, pages)))
        self._note(pages, self._give(user, HintKind.KEEP, nanoseconds(request.hint_ttl), NO_ENTRY, keys))

    def _give(self, user: int, hint: HintKind, ttl_ns: int, space: int, keys: bytes) -> int:
        if hint is HintKind.KEEP:
            return self._owner.keep(user, ttl_ns, self._most, space, keys)
        if hint is HintKind.UNKEEP:
            return self._owner.unkeep(user, space, keys)
        return self._owner.hint(hint, ttl_ns, keys)

    def _spaces(self, namespace: str | None) -> list[int]:
        if namespace is None:
            return [NO_ENTRY]
        return [each.number for each in self._owner.spaces() if means(namespace, each.name, each.digest)]

    def _why_ignored(self, kind: HintKind) -> str:
        """Returns why a hint had no effect, and what to do; "" if it has one."""
        if self._owner.learns:
            return ""
        return f"{_LRU_KEEPS if kind in (HintKind.KEEP, HintKind.UNKEEP) else _LRU}: {_TO_LEARN}"

    def _note(self, pages: int, applied: int) -> None:
        """Counts pages."""
        learns = self._owner.learns
        missed = pages - min(pages, applied)
        self._count(pages=pages, applied=applied, absent=missed * learns, without_effect=missed * (not learns))

    def _count(self, **more: int) -> None:
        sums = {name: getattr(self._counts, name) + number for name, number in more.items()}
        self._counts = msgspec.structs.replace(self._counts, **sums)


def _wrong(request: HintPages) -> str:
    """Returns why a request is invalid, "" if it is valid."""
    pages = PAGE_KEYS.count(request.keys)
    if not PAGE_KEYS.is_whole(request.keys):
        return f"{len(request.keys)} bytes are not a whole number of keys"
    if pages > HINT_KEYS:
        return f"a hint for {pages} pages: a message has at most {HINT_KEYS}"
    if not pages and request.namespace is None:
        return "a hint needs keys or a namespace"
    if request.hint not in _KINDS:
        return f"hint {request.hint} is not known to this daemon"
    if request.namespace is not None and request.hint not in (HintKind.KEEP, HintKind.UNKEEP):
        return "only pages to keep, or to keep no longer, can be named by their namespace"
    return _wrong_ttl(request.ttl)


def _wrong_ttl(ttl: float) -> str:
    return "" if ttl > 0 else f"the time to live of a hint is a positive number of seconds, not {ttl}"
