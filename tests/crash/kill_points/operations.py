"""What engines do, without a disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from kill_points.colliding_pages import PAGES
from kill_points.operation import KNOWN, Operation, Role
from running_daemon import eventually

_FEW: Final = 4
_WAIT_S: Final = 5.0


class Store(Operation):
    """One call, as engines do; the memory of the dead waits as long as it does where nothing is configured."""

    @classmethod
    def flags(cls, folder: Path) -> tuple[str, ...]:
        return "--store-quarantine", "0.25s"

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("store_plainly", self.scene.numbers(_FEW))


class StoreOver(Operation):
    """Into a full arena, whose coldest page was used since."""

    keeps = False

    def prepare(self) -> None:
        old = self.scene.numbers(PAGES)
        assert self.scene.store(old) == PAGES
        self.scene.rest()
        self.scene.look(old[-1:])
        self.engine = self.scene.engine()

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("store", self.scene.numbers(_FEW))


class EvictAhead(StoreOver):
    """Until so little room is left that the daemon evicts by itself."""

    @classmethod
    def flags(cls, folder: Path) -> tuple[str, ...]:
        return "--evict-low", "0.2", "--evict-high", "0.3"


class StoreByRanks(Operation):
    """Two write a part each of the same pages; the other one has begun.

    Where the first never asks, the pages wait for him until they expire.
    """

    @classmethod
    def flags(cls, folder: Path) -> tuple[str, ...]:
        return "--store-expiry", "0.4s"

    def prepare(self) -> None:
        super().prepare()
        self.pages = self.scene.numbers(_FEW)
        self.others = [self.scene.engine()]
        assert self.others[0].do("open", self.pages, 1, 2) == _FEW

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("store", self.pages, 0, 2)
        self.others[0].order("publish")

    def verify(self) -> bool:
        """Whole or not to be found: who looks writes down what he finds."""
        self.scene.look(self.pages)
        return True


class StorePart(Operation):
    """One rank stores its part of pages, and the other rank never comes.

    The pages expire long after its death: what is in use again within a second, came back because it died.
    """

    @classmethod
    def flags(cls, folder: Path) -> tuple[str, ...]:
        return "--store-expiry", "12s"

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("store", self.scene.numbers(_FEW), 0, 2)

    def done(self) -> bool:
        return self.engines_done()

    def verify(self) -> bool:
        """The rank dies after its part was done, if it has not died before."""
        if self.engine is not None:
            self.engine.process.kill()
            self.engine = None
        return True


class Load(Operation):
    """Match, load, release."""

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("look", self.known)


class LoadHandedOver(Operation):
    """What another process matched."""

    def prepare(self) -> None:
        super().prepare()
        self.others = [self.scene.engine()]
        self.handover = self.others[0].do("hold", self.known)

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("adopt", self.handover, self.known)


class MatchGroups(Operation):
    """A hit on which two groups agree."""

    def prepare(self) -> None:
        super().prepare()
        self.window = self.scene.numbers(KNOWN)
        assert self.scene.store(self.window) == KNOWN

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("match_groups", self.known, self.window[:-1])


class StoreBlocks(Operation):
    """Pages of a paged cache, there and back."""

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("store_blocks", self.scene.numbers(1)[0])


class GiveUp(Operation):
    """Reserved pages are abandoned."""

    def prepare(self) -> None:
        super().prepare()
        assert self.engine is not None
        assert self.engine.do("open", self.scene.numbers(_FEW)) == _FEW

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("abandon")


class Overstay(Operation):
    """A reservation expires under its living writer."""

    @classmethod
    def flags(cls, folder: Path) -> tuple[str, ...]:
        return "--store-expiry", "0.15s"

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("overstay", self.scene.numbers(_FEW), 0.3)


class Arrive(Operation):
    """An engine attaches."""

    starts = (Role.ENGINE,)

    def prepare(self) -> None:
        super().prepare()
        self.engine = None

    def act(self) -> None:
        self.engine = self.scene.arriving()


class Leave(Operation):
    """An engine detaches that holds pins."""

    def prepare(self) -> None:
        super().prepare()
        assert self.engine is not None
        self.engine.do("hold", self.known)

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("close")


class ComeAndGo(Operation):
    """Clients of an engine are closed while they attach. Its process lives on: only they can tell of their slots."""

    def act(self) -> None:
        assert self.engine is not None
        self.engine.order("come_and_go")

    def done(self) -> bool:
        return super().done() and self._slots_are_free()

    def verify(self) -> bool:
        """A closed client tells the next daemon, which it looks for once a second."""
        return eventually(self._slots_are_free, _WAIT_S)

    def _slots_are_free(self) -> bool:
        """Whether an engine has the one that it is attached with."""
        pids = Counter(slot["pid"] for slot in self.scene.daemon.observer().slots())
        return all(pids[pid] <= 1 for pid in self.pids_of_engines())


class Bury(Operation):
    """An engine is killed that holds pins, one that has reserved pages, and one that has stored its part of pages."""

    roles = (Role.DAEMON,)

    def prepare(self) -> None:
        super().prepare()
        self.dying = [self.scene.engine(), self.scene.engine(), self.scene.engine()]
        self.dying[0].do("hold", self.known)
        self.dying[1].do("open", self.scene.numbers(_FEW))
        self.dying[2].do("store", self.scene.numbers(_FEW), 0, 2)

    def act(self) -> None:
        for engine in self.dying:
            engine.process.kill()

    def done(self) -> bool:
        attached = {slot["pid"] for slot in self.scene.daemon.observer().slots()}
        return self.scene.quiet() and attached.isdisjoint(engine.process.pid for engine in self.dying)


class FlushAll(Operation):
    """An administrator drops all pages."""

    roles = (Role.DAEMON,)
    keeps = False

    def act(self) -> None:
        assert self.engine is not None
        self.scene.dropping()
        self.engine.order("flush")


class DropIdle(Operation):
    """The table of namespaces is full, and nobody uses what is in it any more."""

    roles = (Role.DAEMON,)
    keeps = False

    @classmethod
    def flags(cls, folder: Path) -> tuple[str, ...]:
        return "--index-namespaces", "1", "--index-namespace-idle", "1s"

    def act(self) -> None:
        assert self.engine is not None
        self.scene.dropping()
        self.engine.order("store_plainly", self.scene.numbers(_FEW))

    def done(self) -> bool:
        return super().done() and not self.scene.header()["pages"]

    def lost(self) -> int:
        return self.scene.header()["flushed"]


OF_ENGINES: Final = (
    Store,
    StoreOver,
    EvictAhead,
    StoreByRanks,
    StorePart,
    Load,
    LoadHandedOver,
    MatchGroups,
    StoreBlocks,
    GiveUp,
    Overstay,
    Arrive,
    Leave,
    ComeAndGo,
    Bury,
    FlushAll,
    DropIdle,
)
