"""What a match found: pages that stay readable until they are let go."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.keys import Keys
from pagetier.shm._core import Pins


class MatchHandle(msgspec.Struct, frozen=True):
    """A match on its way to another process of the same engine: 12 bytes a page. It holds nothing itself.

    The process that matched keeps its pins until the other one has called Client.adopt; what is evicted in
    between is a miss there.
    """

    segments_id: int
    entries: bytes
    serials: bytes

    def __len__(self) -> int:
        return len(self.serials) // 8

    def __repr__(self) -> str:
        return f"<MatchHandle of {len(self)} pages>"


class Match(Pins):
    """The longest cached prefix of some keys, pinned: what is in it can be loaded until release() or `with` ends.

    A client can pin a page 65,535 times at once; another match of it is a miss from that page on.

    Where a daemon gives its memory back meanwhile, as a stop does, what is not being copied by then is a miss.

    len() is the number of pages. Made by Client.match and Client.adopt. Pickling one gives a MatchHandle.

    reach: pages of the prefix if those on disk, or on their way from it, are counted as well; len() or more.
    Client.load brings those behind the first len() in. In a match that was handed over it is len().

    from_disk: pages that were on disk when they were looked for and that Client.load or rematch has brought in since.
    """

    __slots__ = ()

    @property
    def keys(self) -> Keys | None:
        """What was looked for; None in a match that another process handed over."""
        context = self.context
        return context if isinstance(context, Keys) else None

    @property
    def page_sizes(self) -> npt.NDArray[np.uint64]:
        """Bytes of each page; empty once the pages are let go."""
        return np.frombuffer(self.sizes, dtype=np.uint64)

    def to_handle(self) -> MatchHandle:
        """For another process of the same engine."""
        session = self.session
        segments_id = session.segments_id if session is not None and self.held else 0
        return MatchHandle(segments_id, self.entries if segments_id else b"", self.serials if segments_id else b"")

    def __reduce__(self) -> tuple[type[MatchHandle], tuple[int, bytes, bytes]]:
        handover = self.to_handle()
        return MatchHandle, (handover.segments_id, handover.entries, handover.serials)

    def __repr__(self) -> str:
        if not self.held and len(self):
            return f"<Match {len(self)} of {self.asked} pages, let go>"
        more = f", {self.available_pages - len(self)} more on disk" if self.available_pages > len(self) else ""
        return f"<Match {len(self)} of {self.asked} pages, {int(self.page_sizes.sum()) / 2**20:.1f} MiB{more}>"
