"""A folder is opened as after a host restart, and judged: exact bytes or a miss, and it goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from oracle.checker import Kind, Violation
from oracle.page_contents import wrong
from pagetier.tiers.base import Incoming, ReadOutcome, Tier, TierError
from pagetier.tiers.lmdb import recovery
from power_loss.constants import FRAME, SEED, Terms, key_of
from power_loss.workload import outgoing

NEWCOMERS = range(900_000, 900_006)
_MOST_BYTES = 1 << 30  # nobody has room for a page that says that it is bigger


class Expected(msgspec.Struct, frozen=True):
    """Keys of pages. may: that somebody began to store; must: that have to be there. stored: how many would be there
    if nothing were lost, for people."""

    may: frozenset[bytes]
    must: frozenset[bytes] = frozenset()
    stored: int = 0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder was found to be. how: the tier's line. exact, damaged: pages that were listed, by how reading
    went; rebuilt: whether a part of it was."""

    how: str
    exact: int
    damaged: int
    violations: list[Violation]

    @property
    def rebuilt(self) -> bool:
        return self.how.startswith("rebuilt empty")


class Looker:
    """Reads pages of a tier, and collects what ought not to be."""

    def __init__(self, tier: Tier, frame: int) -> None:
        self.tier = tier
        self._frame = frame
        self.violations: list[Violation] = []

    def listed(self) -> dict[bytes, int]:
        """Sizes of all that it says that it holds."""
        sizes: dict[bytes, int] = {}
        for held in self.tier.contents():
            for at in range(len(held)):
                key = held.keys[32 * at : 32 * at + 32]
                if key in sizes:
                    self.blame(Kind.INTEGRITY, "it is listed twice", key)
                sizes[key] = int.from_bytes(held.sizes[8 * at : 8 * at + 8], "little")
        return sizes

    def outcome(self, key: bytes, size: int) -> ReadOutcome:
        """How reading a page goes; what is called exact is."""
        if size > _MOST_BYTES:
            return ReadOutcome.ABSENT
        frames = [memoryview(bytearray(self._frame)) for _ in range(-(-size // self._frame))]
        outcome = self.tier.read(Incoming(key, size, frames)).outcome
        if outcome is ReadOutcome.EXACT and (found := wrong(b"".join(frames)[:size], key, SEED)) is not None:
            self.blame(Kind.BYTES, str(found), key)
        return outcome

    def exact(self, sizes: dict[bytes, int]) -> dict[bytes, int]:
        """Those that are."""
        return {key: size for key, size in sizes.items() if self.outcome(key, size) is ReadOutcome.EXACT}

    def blame(self, kind: Kind, what: str, key: bytes = b"") -> None:
        """Something ought not to be."""
        self.violations.append(Violation(kind, what, key))


def after_a_restart(boot: Path) -> None:
    """For this process the host has started anew, once more each time. boot: a file, another one each time."""
    boot.write_text(f"the boot after {recovery.boot_id()}")
    recovery._BOOT_ID = boot  # type: ignore[misc]
    recovery.boot_id.cache_clear()


def prove_here() -> None:
    """For this process proofs are no processes of their own: the same text, a hundred times faster."""
    recovery.prove = lambda folders, seconds: [_proof_here(folder) for folder in folders]


def _proof_here(folder: Path) -> str:
    arguments, sys.argv = sys.argv, ["proof", str(folder / "data.mdb"), str(os.getppid())]
    try:
        exec(recovery._PROOF, {})
    except SystemExit as end:
        return str(end.code) if end.code else ""
    finally:
        sys.argv = arguments
    return ""


def unsound(folder: Path) -> list[str]:
    """Which of a tier's parts can not be proven as they are."""
    return [path.name for path in folder.glob("[0-9]") if (path / "data.mdb").exists() and _proof_here(path)]


def _is_believed(folder: Path) -> bool:
    """Whether its state file says that no proof is needed. One of nonsense says nothing."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        state = recovery.read_state(folder)
        return state is not None and (state.clean or state.boot == recovery.boot_id())
    return False


def judged(folder: Path, terms: Terms, expected: Expected) -> Found:
    """Opens it, looks at all of it, goes on with it, closes it, and looks once more."""
    doubtful = unsound(folder) if _is_believed(folder) else []
    looker = Looker(terms.opened(folder), terms.frame)
    how = looker.tier.state().opened
    if doubtful and how == "as it was left":
        looker.blame(Kind.INTEGRITY, f"parts are believed and unsound: {doubtful}")
    sizes = looker.listed()
    exact = looker.exact(sizes)
    _expect(looker, sizes, exact, expected)
    left = _go_on(looker, exact) if terms.frame == FRAME else exact
    looker.tier.close()
    violations = looker.violations + _once_more(folder, terms, left)
    return Found(how=how, exact=len(exact), damaged=len(sizes) - len(exact), violations=violations)


def _expect(looker: Looker, sizes: Iterable[bytes], exact: Collection[bytes], expected: Expected) -> None:
    for key in sizes:
        if key not in expected.may:
            looker.blame(Kind.NOWHERE, "", key)
    for key in expected.must:
        if key not in exact:
            looker.blame(Kind.LOST, "it was there before the power went", key)


def _go_on(looker: Looker, exact: dict[bytes, int]) -> dict[bytes, int]:
    """Some pages go and others come: none of those that stay is touched. What is exact then."""
    pages = [outgoing(number) for number in NEWCOMERS]
    gone = _making_room(exact, sum(len(page.frames) for page in pages) * FRAME)
    written = looker.tier.write(gone, pages)
    if written.undropped or not all(written.stored):
        looker.blame(Kind.CRASH, f"it does not go on: {written.undropped or set(written.reasons)}")
    left = {key: size for key, size in exact.items() if key not in gone} | {page.key: page.size for page in pages}
    _still(looker, left, "before others came")
    return left


def _making_room(exact: dict[bytes, int], wanted: int) -> Sequence[bytes]:
    gone = []
    for key, size in exact.items():
        if wanted <= -20 * FRAME:
            break
        gone.append(key)
        wanted -= size
    return gone


def _still(looker: Looker, pages: dict[bytes, int], when: str) -> None:
    for key in pages.keys() - looker.exact(pages).keys():
        looker.blame(Kind.LOST, f"it was there {when}", key)


def _once_more(folder: Path, terms: Terms, exact: dict[bytes, int]) -> list[Violation]:
    looker = Looker(terms.opened(folder), terms.frame)
    if looker.tier.state().opened != "as it was left":
        looker.blame(Kind.LOST, f"it was closed, and is found to be {looker.tier.state().opened}")
    _still(looker, exact, "before it was closed")
    if terms.frame == FRAME and looker.listed().keys() - exact.keys():
        with suppress(TierError):
            looker.blame(Kind.NOWHERE, "what was dropped is there again")
    looker.tier.close()
    return looker.violations


def keys_of(numbers: Iterable[int]) -> frozenset[bytes]:
    """Of pages of a tale."""
    return frozenset(map(key_of, numbers))
