"""Splits the stream of a socket into messages."""

from __future__ import annotations

from collections.abc import Iterator

from pagetier.shm.message_codec import LENGTH
from pagetier.shm.protocol import MESSAGE_LIMIT, ProtocolError


class Unpacker:
    """Splits a stream of bytes into messages. Each connection has its own."""

    def __init__(self, limit: int = MESSAGE_LIMIT) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def limit(self, nbytes: int) -> None:
        """Sets the maximum length of the messages to come."""
        self._limit = nbytes

    @property
    def buffered(self) -> int:
        """The bytes of messages that are incomplete or not yet taken."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Returns the bodies of the messages that `data` completes. Messages that are not taken stay buffered.

        The iterator raises ProtocolError for a length over the limit.
        """
        size = len(data) - LENGTH.size
        if not self._buffer and 0 <= size <= self._limit and LENGTH.unpack_from(data)[0] == size:  # the usual case
            return iter((data[LENGTH.size :],))
        self._buffer += data
        return iter(self._next, None)

    def _next(self) -> bytes | None:
        if len(self._buffer) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._buffer)
        if length > self._limit:
            raise ProtocolError(f"a message of {length} bytes exceeds the limit of {self._limit}")
        end = LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[LENGTH.size : end])
        del self._buffer[:end]
        return body
