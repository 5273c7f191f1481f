"""What a client has received of the daemon's responses and not passed on yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pagetier.shm.message_codec import LENGTH, read_answer
from pagetier.shm.protocol import MESSAGE_LIMIT, Answer, ProtocolError


class ResponseBuffer:
    """Bytes and responses on their way from a socket to their receivers. For one thread at a time.

    An exception of a signal handler may end each method at any point, and nothing is lost: a step is noted after it is
    done, and is repeated if an exception comes in between. So a response may be passed on twice.

    Attributes:
        chunks: The bytes that were received, to which the receiver of the socket appends.
        answers: The responses that were decoded.
    """

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque()
        self.answers: deque[Answer] = deque()
        self._needed = LENGTH.size  # bytes in `chunks` before they can have a whole message

    @property
    def has_responses(self) -> bool:
        """Whether there is a response, decoded or not."""
        return bool(self.answers) or sum(map(len, self.chunks)) >= self._needed

    def decode(self) -> None:
        """Decodes whole messages. Raises ProtocolError for one that is not of this protocol."""
        if sum(map(len, self.chunks)) < self._needed:
            return
        data = b"".join(self.chunks)
        answers, at, needed = _split(data)
        rest = deque([data[at:]] if at < len(data) else [])
        self.answers.extend(answers)
        self.chunks, self._needed = rest, needed

    def deliver(self, call: Callable[[Answer], object]) -> None:
        """Passes the decoded responses to `call`."""
        while self.answers:
            answer = self.answers[0]
            call(answer)
            if self.answers and self.answers[0] is answer:
                self.answers.popleft()


def _split(data: bytes) -> tuple[list[Answer], int, int]:
    """Returns the whole messages in `data`, where they end, and the bytes from there on that the next one needs."""
    answers: list[Answer] = []
    at, needed = 0, LENGTH.size
    while len(data) - at >= LENGTH.size:
        (length,) = LENGTH.unpack_from(data, at)
        if length > MESSAGE_LIMIT:
            raise ProtocolError(f"a message of {length} bytes exceeds the limit of {MESSAGE_LIMIT}")
        needed = LENGTH.size + length
        if len(data) - at < needed:
            break
        answers.append(read_answer(data[at + LENGTH.size : at + needed]))
        at, needed = at + needed, LENGTH.size
    return answers, at, needed
