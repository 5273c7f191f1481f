"""What a page holds follows from its key and a seed, and every word of it says whose it is and where it belongs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

WORD_BYTES: Final = 8
_PLACE_BITS: Final = 24
_TAG_BYTES: Final = 5
_MOST_BYTES: Final = WORD_BYTES << _PLACE_BITS


class Wrong(msgspec.Struct, frozen=True):
    """The first byte of a page that is not what was stored.

    at: where it is. found: the word that it is in, as it is. tag: whose word that is, as tag_of() says; 0: nobody's,
    it was never written. place: which word of that page it is.
    """

    at: int
    found: bytes
    tag: int
    place: int

    def whose(self, keys: Iterable[bytes], seed: int) -> bytes | None:
        """Which of these keys the word belongs to."""
        return next((key for key in keys if tag_of(key, seed) == self.tag), None)

    def __str__(self) -> str:
        whose = f"word {self.place} of the page with tag {self.tag:010x}" if self.tag else "nobody's: never written"
        return f"byte {self.at} is wrong, in the word {self.found.hex()}: {whose}"


def tag_of(key: bytes, seed: int) -> int:
    """What the words of a page have in common: 40 bits, never 0."""
    digest = blake2b(key, digest_size=_TAG_BYTES, salt=seed.to_bytes(8, "little", signed=True)).digest()
    return int.from_bytes(digest, "little") or 1


def words(key: bytes, seed: int, nbytes: int) -> npt.NDArray[np.uint64]:
    """content() as an array of words that the caller may change; the last one is whole.

    Raises ValueError beyond 128 MiB.
    """
    if nbytes > _MOST_BYTES:
        raise ValueError(f"{nbytes} bytes: a page of more than {_MOST_BYTES} has more words than a word can count")
    return _places(-(-nbytes // WORD_BYTES)) | np.uint64(tag_of(key, seed) << _PLACE_BITS)


def content(key: bytes, seed: int, nbytes: int) -> bytes:
    """What the page of this key holds: words with the tag above and their place below, little-endian."""
    return words(key, seed, nbytes).tobytes()[:nbytes]


def wrong(page: bytes | bytearray | npt.NDArray[Any], key: bytes, seed: int) -> Wrong | None:
    """The first byte of a page that is not content()'s; None if all are. page: all of it, in one piece."""
    found = np.frombuffer(page, dtype=np.uint8)
    right = words(key, seed, len(found)).view(np.uint8)[: len(found)]
    if np.array_equal(found, right):
        return None
    at = int(np.flatnonzero(found != right)[0])
    begins = at - at % WORD_BYTES
    word = found[begins : begins + WORD_BYTES].tobytes()
    number = int.from_bytes(word, "little")
    return Wrong(at, word, number >> _PLACE_BITS, number & ((1 << _PLACE_BITS) - 1))


@lru_cache(maxsize=16)
def _places(count: int) -> npt.NDArray[np.uint64]:
    places = np.arange(count, dtype=np.uint64)
    places.flags.writeable = False
    return places
