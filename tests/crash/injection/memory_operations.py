"""Operations of engines without a disk."""

from __future__ import annotations

from collections import Counter

from eventually import eventually
from injection.colliding_pages import PAGES
from injection.injector import Role
from injection.operation import FEW, KNOWN, Operation


class Store(Operation):
    """An engine stores pages with one call; the quarantine of memory has its default duration."""

    flags = ("--constant", "store.quarantine=0.25")

    def act(self) -> None:
        self.send("store_plainly", self.scene.numbers(FEW))


class StoreOver(Operation):
    """An engine stores into a full arena whose coldest page was used since."""

    keeps_pages = False

    def prepare(self) -> None:
        old = self.scene.numbers(PAGES)
        assert self.scene.store(old) == PAGES
        self.scene.rest()
        self.scene.verify(old[-1:])
        self.engine = self.scene.engine()

    def act(self) -> None:
        self.send("store", self.scene.numbers(FEW))


class EvictEarly(StoreOver):
    """An engine stores until the daemon evicts in the background."""

    flags = ("--set", "evict.free=0.3")


class StoreByRanks(Operation):
    """Two ranks each write a part of the same pages; the other rank has already begun.

    If the first rank never requests its part, the pages wait for it until they expire.
    """

    flags = ("--constant", "store.reservation_timeout=1")

    def prepare(self) -> None:
        super().prepare()
        self.pages = self.scene.numbers(FEW)
        self.others = [self.scene.engine()]
        assert self.others[0].do("open", self.pages, 1, 2) == FEW

    def act(self) -> None:
        self.send("store", self.pages, 0, 2)
        self.others[0].send_command("publish")

    def verify(self) -> bool:
        """Returns True; the journal of the observing client shows if a page was found that is not complete."""
        self.scene.verify(self.pages)
        return True


class StorePart(Operation):
    """One rank stores its part of the pages, and the other rank never starts.

    The pages expire long after the death of the rank, so memory that is released within a second was released by the
    death.
    """

    flags = ("--constant", "store.reservation_timeout=12")

    def act(self) -> None:
        self.send("store", self.scene.numbers(FEW), 0, 2)

    def done(self) -> bool:
        return self.engines_done()

    def verify(self) -> bool:
        """Kills the rank if it is still alive, after its part was stored. Returns whether its memory was released."""
        if self.engine is not None:
            self.engine.process.kill()
            self.engine = None
        return True


class Load(Operation):
    """An engine matches, loads and releases pages."""

    def act(self) -> None:
        self.send("verify", self.known)


class LoadHandedOver(Operation):
    """An engine loads pages that another process matched."""

    def prepare(self) -> None:
        super().prepare()
        self.others = [self.scene.engine()]
        self.handover = self.others[0].do("pin", self.known)

    def act(self) -> None:
        self.send("adopt", self.handover, self.known)


class MatchGroups(Operation):
    """An engine matches in two groups, and the hit ends where both agree."""

    def prepare(self) -> None:
        super().prepare()
        self.window = self.scene.numbers(KNOWN)
        assert self.scene.store(self.window) == KNOWN

    def act(self) -> None:
        self.send("match_groups", self.known, self.window[:-1])


class Announce(Operation):
    """An engine reads which pages came and left, and announces them. The next one must announce all that are there."""

    roles = (Role.ENGINE,)

    def act(self) -> None:
        self.send("announce", self.known)

    def verify(self) -> bool:
        return bool(self.scene.engine().do("announce", self.known) == set(self.known))


class StoreBlocks(Operation):
    """An engine stores and loads pages of a paged cache."""

    def act(self) -> None:
        self.send("store_blocks", self.scene.numbers(1)[0])


class GiveUp(Operation):
    """An engine abandons reserved pages."""

    def prepare(self) -> None:
        super().prepare()
        assert self.first().do("open", self.scene.numbers(FEW)) == FEW

    def act(self) -> None:
        self.send("abandon")


class Overstay(Operation):
    """A reservation expires while its writer is alive; those of the observing client must not."""

    flags = ("--constant", "store.reservation_timeout=1")

    def act(self) -> None:
        self.send("overstay", self.scene.numbers(FEW), 1.5)


class Arrive(Operation):
    """An engine attaches."""

    starts = (Role.ENGINE,)

    def prepare(self) -> None:
        super().prepare()
        self.engine = None

    def act(self) -> None:
        self.engine = self.scene.arriving()


class Leave(Operation):
    """An engine that holds pins detaches."""

    def prepare(self) -> None:
        super().prepare()
        self.first().do("pin", self.known)

    def act(self) -> None:
        self.send("close")


class ComeAndGo(Operation):
    """Clients of an engine are closed while they attach. Its process survives, so only they can release their slots."""

    def act(self) -> None:
        self.send("come_and_go")

    def done(self) -> bool:
        return super().done() and self._slots_are_free()

    def verify(self) -> bool:
        """Returns whether the slots are free; a closed client notifies the next daemon within a second."""
        return eventually(self._slots_are_free)

    def _slots_are_free(self) -> bool:
        """Returns whether the engine has exactly the slot that it is attached with."""
        pids = Counter(slot.pid for slot in self.scene.daemon.observer().attachments_with_pins())
        return all(pids[pid] <= 1 for pid in self.pids_of_engines())


class Bury(Operation):
    """Three engines are killed: one holds pins, one has reserved pages, one has stored its part of pages."""

    roles = (Role.DAEMON,)

    def prepare(self) -> None:
        super().prepare()
        self.dying = [self.scene.engine(), self.scene.engine(), self.scene.engine()]
        self.dying[0].do("pin", self.known)
        self.dying[1].do("open", self.scene.numbers(FEW))
        self.dying[2].do("store", self.scene.numbers(FEW), 0, 2)

    def act(self) -> None:
        for engine in self.dying:
            engine.process.kill()

    def done(self) -> bool:
        attached = {slot.pid for slot in self.scene.daemon.observer().attachments_with_pins()}
        return self.scene.quiet() and attached.isdisjoint(engine.process.pid for engine in self.dying)


class FlushAll(Operation):
    """An administrator flushes all pages."""

    roles = (Role.DAEMON,)
    keeps_pages = False

    def act(self) -> None:
        self.scene.dropping()
        self.send("flush")


class Keep(Operation):
    """An engine asks the daemon to keep pages."""

    roles = (Role.DAEMON,)

    def act(self) -> None:
        self.send("keep", self.known)


class DropIdle(Operation):
    """The table of namespaces is full, and no process uses its entries any more."""

    roles = (Role.DAEMON,)
    flags = ("--constant", "index.namespaces=1", "--constant", "index.namespace_idle=1")
    keeps_pages = False

    def act(self) -> None:
        self.scene.dropping()
        self.send("store_plainly", self.scene.numbers(FEW))

    def done(self) -> bool:
        return super().done() and not self.scene.header().pages

    def lost(self) -> int:
        return self.scene.header().flushed
