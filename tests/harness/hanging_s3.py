"""A server that answers requests of S3 for one bucket in this process until it is asked to hang or to fail."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final

_HEAD_ENDS: Final = b"\r\n\r\n"
_FOUND: Final = (
    'HTTP/1.1 200 OK\r\nContent-Length: {}\r\nETag: "0"\r\nLast-Modified: Mon, 02 Nov 2026 10:00:00 GMT\r\n\r\n'
)
_ABSENT: Final = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
_FAILED: Final = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"


def refusal(status: str, code: str) -> bytes:
    """Returns the answer to a request that S3 refuses with this status and its own code."""
    body = f"<Error><Code>{code}</Code></Error>"
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


class HangingS3:
    """An endpoint of an empty bucket.

    Attributes:
        hangs: The methods whose requests get no answer.
        failing: A text in the path of requests that fail.
        failure: The answer to these.
        object_bytes: The length of each object of which HEAD says that it is there; 0: none is there.
        hung: The methods of the requests that got no answer.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.hangs: frozenset[str] = frozenset()
        self.failing = ""
        self.failure = _FAILED
        self.object_bytes = 0
        self.hung: list[str] = []
        self.url = f"s3://pages/hosts?endpoint=http://127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        """Answers the requests of a connection. The body of one that hangs is read and dropped."""
        with peer, contextlib.suppress(OSError):
            data = b""
            while more := peer.recv(1 << 16):
                data += more
                if _HEAD_ENDS in data:
                    self._answer(peer, data.partition(_HEAD_ENDS)[0].decode())
                    data = b""

    def _answer(self, peer: socket.socket, head: str) -> None:
        method, path = head.split(" ")[:2]
        if method in self.hangs and not path.endswith("probe"):
            self.hung.append(method)
        elif self.failing and self.failing in path:
            peer.sendall(self.failure)
        elif method == "HEAD" and self.object_bytes and not path.endswith("probe"):
            peer.sendall(_FOUND.format(self.object_bytes).encode())
        else:
            peer.sendall(_ABSENT)


@contextlib.contextmanager
def hanging_s3() -> Iterator[HangingS3]:
    """Runs the server for the time of a block."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield HangingS3(listener)
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
