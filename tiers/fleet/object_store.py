"""The interface of a store of objects. Each store implements it in one module."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from pagetier.tiers.base import TierError

ABSENT: Final = -1
UNFINISHED: Final = ".unfinished"  # beside the prefixes in a folder: what is being written


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a store gets when it is opened.

    Attributes:
        netloc: The part of the URL between the scheme and the path.
        path: The path of the URL.
        parameters: The parameters of the URL, each with its last value.
        memory: The bounce buffers. Each buffer of a put() or get() lies in this memory.
        timeout_s: After this time a call is given up. A store limits its library to it as well, where it can.
    """

    netloc: str
    path: str
    parameters: dict[str, str]
    memory: memoryview
    timeout_s: float


class ObjectStore(Protocol):
    """A store of objects by name. Several threads call it at the same time.

    Any call may raise any exception, and may be given up by its caller and return later. No object is ever replaced.
    """

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Returns which names are taken, also by an object of no bytes."""

    def sizes(self, names: Sequence[str]) -> array[int]:
        """Returns the length of each object, 0 if it is absent, as an array of type "Q". The lengths may be guesses."""

    def put(self, name: str, data: memoryview) -> bool:
        """Stores an object whole or not at all. Returns False if there was one by this name; that one stays.

        A store that cannot see that returns True.
        """

    def get(self, name: str, into: memoryview) -> int | memoryview:
        """Copies an object to the beginning of a buffer, or returns it as a memoryview of bytes.

        Returns:
            The length of an object that was copied or is longer than the buffer, whose content is undefined then;
            ABSENT if there is none. Or the object, if the library has it in memory of its own that nothing writes to
            any more, so that it need not be copied; it is no longer than the buffer.
        """

    def remove(self, name: str) -> None:
        """Removes an object if it is there."""

    def close(self) -> None:
        """Releases everything. No other call follows, but calls that were given up may still run."""


def length_and_bytes(got: int | memoryview, memory: memoryview) -> tuple[int, memoryview]:
    """Returns the length of an object that ObjectStore.get() got into `memory`, and where it is.

    Raises:
        TierError: The store returned something else.
    """
    try:
        if not isinstance(got, memoryview):
            return operator.index(got), memory
        data = got.cast("B")
    except TypeError as error:
        raise TierError(f"the store returned neither a length nor a memoryview of bytes: {error}") from error
    return len(data), data if len(data) <= len(memory) else memory
