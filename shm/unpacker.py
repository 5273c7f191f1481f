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
        """Yields the bodies of the messages that `data` completes.

        Raises ProtocolError for a length over the limit.
        """
        if not self._buffer and self._is_one_message(data):  # the usual case
            yield data[LENGTH.size :]
            return
        self._buffer += data
        while (body := self._next()) is not None:
            yield body

    def _is_one_message(self, data: bytes) -> bool:
        return len(data) >= LENGTH.size and LENGTH.unpack_from(data)[0] == len(data) - LENGTH.size <= self._limit

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
