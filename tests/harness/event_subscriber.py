"""A subscriber of the KV cache events of an engine, and of their replay."""

from __future__ import annotations

from typing import Final

import zmq

from eventually import PATIENCE_S

_WAIT_MS: Final = PATIENCE_S * 1000


class EventSubscriber:
    """Hears what one engine publishes from now on: it is connected.

    Attributes:
        batches: The batches that were heard, with their numbers.
    """

    def __init__(self, endpoint: str, replay: str, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self._socket, self._replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        with self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) as connected:
            self._socket.connect(endpoint)
            self._socket.subscribe(b"")
            assert connected.poll(_WAIT_MS), "the engine publishes no events"
        self._socket.disable_monitor()
        self._replay.connect(replay)

    def hear(self) -> list[bytes]:
        """Returns the batches that came since the last call. Their numbers have no gap."""
        known = len(self.batches)
        while self._socket.poll(0):
            _, number, batch = self._socket.recv_multipart()
            self.batches.append((int.from_bytes(number, "big"), batch))
            assert self.batches[-1][0] == self.batches[0][0] + len(self.batches) - 1, "a batch is missing"
        return [batch for _, batch in self.batches[known:]]

    def replayed(self, first: int = 0) -> list[tuple[int, bytes]]:
        """Returns the batches from a number on as the engine replays them."""
        self._replay.send_multipart((b"", first.to_bytes(8, "big")))
        batches: list[tuple[int, bytes]] = []
        while self._replay.poll(_WAIT_MS):
            _, _, number, batch = self._replay.recv_multipart()
            if int.from_bytes(number, "big", signed=True) < 0:
                return batches
            batches.append((int.from_bytes(number, "big"), batch))
        raise AssertionError("the replay does not end")

    def close(self) -> None:
        """Closes both sockets."""
        for socket in (self._socket, self._replay):
            socket.close(0)
