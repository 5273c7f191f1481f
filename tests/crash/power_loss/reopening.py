"""Opens a folder as after a host restart and judges it: each page is exact or a miss, and the tier still works."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from oracle.checker import Kind, Violation
from oracle.page_contents import wrong
from pagetier.tiers.base import Catalogue, Incoming, ReadOutcome, TierError
from pagetier.tiers.disk import recovery
from pagetier.tiers.lmdb import proof
from power_loss.workload import FRAME, SEED, Terms, key_of, outgoing
from store_pages import aligned

NEWCOMERS = range(900_000, 900_006)
_MOST_BYTES = 1 << 30  # a page that claims to be larger is not read


class Expected(msgspec.Struct, frozen=True):
    """The expected keys.

    Attributes:
        may: Keys of pages whose store had begun.
        must: Keys of pages that must be found.
    """

    may: frozenset[bytes]
    must: frozenset[bytes] = frozenset()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a folder after it was opened.

    Attributes:
        how: The tier's message about its opening.
        exact: The number of listed pages that were read with their exact bytes.
        damaged: The number of listed pages that were found corrupt.
        violations: The broken promises.
    """

    how: str
    exact: int = 0
    damaged: int = 0
    violations: list[Violation] = []


class PageReader:
    """Reads the pages of a tier, and collects broken promises."""

    def __init__(self, tier: Catalogue, frame: int) -> None:
        self.tier = tier
        self._frame = frame
        self.violations: list[Violation] = []

    def listed(self) -> dict[bytes, int]:
        """Returns the sizes of all pages that the tier lists."""
        sizes: dict[bytes, int] = {}
        for held in self.tier.contents():
            for page in held:
                if page.key in sizes:
                    self.blame(Kind.INTEGRITY, "the page is listed twice", page.key)
                sizes[page.key] = page.size
        return sizes

    def outcome(self, key: bytes, size: int) -> ReadOutcome:
        """Reads a page and returns the outcome; a page that is called exact is compared with its expected content."""
        if size > _MOST_BYTES:
            return ReadOutcome.ABSENT
        whole = aligned(-(-size // self._frame) * self._frame)
        frames = [whole[at : at + self._frame] for at in range(0, len(whole), self._frame)]
        outcome = self.tier.read(Incoming(key, size, frames)).outcome
        if outcome is ReadOutcome.EXACT and (found := wrong(b"".join(frames)[:size], key, SEED)) is not None:
            self.blame(Kind.BYTES, str(found), key)
        return outcome

    def exact(self, sizes: dict[bytes, int]) -> dict[bytes, int]:
        """Returns the pages that can be read exactly."""
        return {key: size for key, size in sizes.items() if self.outcome(key, size) is ReadOutcome.EXACT}

    def blame(self, kind: Kind, what: str, key: bytes = b"") -> None:
        """Records a broken promise."""
        self.violations.append(Violation(kind, what, key))


def after_a_restart(boot: Path) -> None:
    """Simulates a host restart for this process, another one with each call. `boot` is a new file each time."""
    boot.write_text(f"the boot after {recovery.boot_id()}")
    recovery._BOOT_ID = boot  # type: ignore[misc]
    recovery.boot_id.cache_clear()


def prove_here() -> None:
    """Runs verifications within this process instead of a new one: the same code, a hundred times faster."""
    recovery.prove = lambda folders, seconds: [_proof_here(folder) for folder in folders]


def _proof_here(folder: Path) -> str:
    return proof.fault(str(folder / "data.mdb"))


def unsound(folder: Path) -> list[str]:
    """Returns the parts of a tier that fail the verification."""
    return [path.name for path in folder.glob("[0-9]") if (path / "data.mdb").exists() and _proof_here(path)]


def _is_believed(folder: Path) -> bool:
    """Returns whether its state file says that no verification is needed; an invalid file does not."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        state = recovery.read_state(folder)
        return state is not None and (state.clean or state.boot == recovery.boot_id())
    return False


def judged(folder: Path, terms: Terms, expected: Expected) -> Found:
    """Opens a folder, reads all pages, uses the tier, closes it, and checks it once more."""
    doubtful = unsound(folder) if _is_believed(folder) else []
    reader = PageReader(terms.opened(folder), terms.frame)
    how = reader.tier.state().opened
    if doubtful and how == "as it was left":
        reader.blame(Kind.INTEGRITY, f"unsound parts were opened without verification: {doubtful}")
    sizes = reader.listed()
    exact = reader.exact(sizes)
    _expect(reader, sizes, exact, expected)
    left = _use(reader, exact) if terms.frame == FRAME else exact
    reader.tier.close()
    violations = reader.violations + _once_more(folder, terms, left)
    return Found(how=how, exact=len(exact), damaged=len(sizes) - len(exact), violations=violations)


def _expect(reader: PageReader, sizes: Iterable[bytes], exact: Collection[bytes], expected: Expected) -> None:
    for key in sizes:
        if key not in expected.may:
            reader.blame(Kind.NOWHERE, "", key)
    for key in expected.must:
        if key not in exact:
            reader.blame(Kind.LOST, "the page was on the disk before the power loss", key)


def _use(reader: PageReader, exact: dict[bytes, int]) -> dict[bytes, int]:
    """Drops some pages and stores others, and returns the pages that are exact then; no other page may change."""
    pages = [outgoing(number) for number in NEWCOMERS]
    gone = _making_room(exact, sum(len(page.frames) for page in pages) * FRAME)
    written = reader.tier.write(gone, pages)
    if written.undropped or not all(written.stored):
        reader.blame(Kind.CRASH, f"the tier cannot be used: {written.undropped or set(written.reasons)}")
    left = {key: size for key, size in exact.items() if key not in gone} | {page.key: page.size for page in pages}
    _check_unchanged(reader, left, "before other pages were stored")
    return left


def _making_room(exact: dict[bytes, int], wanted: int) -> Sequence[bytes]:
    gone = []
    for key, size in exact.items():
        if wanted <= -20 * FRAME:
            break
        gone.append(key)
        wanted -= size
    return gone


def _check_unchanged(reader: PageReader, pages: dict[bytes, int], when: str) -> None:
    for key in pages.keys() - reader.exact(pages).keys():
        reader.blame(Kind.LOST, f"the page was found {when}", key)


def _once_more(folder: Path, terms: Terms, exact: dict[bytes, int]) -> list[Violation]:
    reader = PageReader(terms.opened(folder), terms.frame)
    if reader.tier.state().opened != "as it was left":
        reader.blame(Kind.LOST, f"a closed tier was opened as: {reader.tier.state().opened}")
    _check_unchanged(reader, exact, "before the tier was closed")
    if terms.frame == FRAME and reader.listed().keys() - exact.keys():
        with suppress(TierError):
            reader.blame(Kind.NOWHERE, "a dropped page is listed again")
    reader.tier.close()
    return reader.violations


def keys_of(numbers: Iterable[int]) -> frozenset[bytes]:
    """Returns the keys of pages by their numbers."""
    return frozenset(map(key_of, numbers))
