"""Page content that follows from key and seed: each word contains the tag of its page and its position."""

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
    """The first wrong byte of a page.

    Attributes:
        at: Its offset.
        found: The word that contains it.
        tag: The tag of the page to which the word belongs, see tag_of(); 0: the word was never written.
        place: The position of the word in that page.
    """

    at: int
    found: bytes
    tag: int
    place: int

    def whose(self, keys: Iterable[bytes], seed: int) -> bytes | None:
        """Returns the key among `keys` to which the word belongs, or None."""
        return next((key for key in keys if tag_of(key, seed) == self.tag), None)

    def __str__(self) -> str:
        whose = f"word {self.place} of the page with tag {self.tag:010x}" if self.tag else "never written"
        return f"byte {self.at} is wrong, in the word {self.found.hex()}: {whose}"


def tag_of(key: bytes, seed: int) -> int:
    """Returns the tag that all words of a page contain: 40 bits, never 0."""
    digest = blake2b(key, digest_size=_TAG_BYTES, salt=seed.to_bytes(8, "little", signed=True)).digest()
    return int.from_bytes(digest, "little") or 1


def words(key: bytes, seed: int, nbytes: int) -> npt.NDArray[np.uint64]:
    """Returns content() as an array of whole words that the caller may change.

    Raises:
        ValueError: The page has more than 128 MiB.
    """
    if nbytes > _MOST_BYTES:
        raise ValueError(f"{nbytes} bytes: a page of more than {_MOST_BYTES} has more words than a word can count")
    return _places(-(-nbytes // WORD_BYTES)) | np.uint64(tag_of(key, seed) << _PLACE_BITS)


def content(key: bytes, seed: int, nbytes: int) -> bytes:
    """Returns the content of the page: little-endian words, tag in the upper, position in the lower bits."""
    return words(key, seed, nbytes).tobytes()[:nbytes]


def wrong(page: bytes | bytearray | npt.NDArray[Any], key: bytes, seed: int) -> Wrong | None:
    """Returns the first byte of a page that differs from content(), or None. `page` is all of it, contiguous."""
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
