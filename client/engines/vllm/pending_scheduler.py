"""The scheduler's half before it exists: its namespaces are unknown until the weights are identified."""

from __future__ import annotations

from collections.abc import Callable

from pagetier.client.client import Client
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.weights import ModelIdentity
from pagetier.client.engines.weights_thread import WeightsThread


class PendingScheduler:
    """The scheduler's half to be. Called by the one thread of vLLM's scheduler; only wait() blocks.

    Args:
        weights: Identifies the weights.
        client: The client of the half.
        opened: Returns the half for the identity of the model.
    """

    def __init__(
        self, weights: WeightsThread, client: Client, opened: Callable[[ModelIdentity], SchedulerHalf]
    ) -> None:
        self._weights, self._client, self._opened = weights, client, opened
        self._reset = False

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds, and returns whether the half can be opened. Logs that it cannot."""
        ready = self._weights.wait(timeout)
        self._weights.log_unless_ended()
        return ready

    @property
    def ready(self) -> bool:
        """Whether the half can be opened."""
        return self._weights.ended

    @property
    def identity(self) -> ModelIdentity:
        """The identity of the model once the half can be opened."""
        return self._weights.identity

    def open(self) -> SchedulerHalf:
        """Returns the half, which owns the client from now on. If that fails, the client is closed."""
        try:
            half = self._opened(self._weights.identity)
        except BaseException:
            self._client.close()
            raise
        if self._reset:
            half.renew()
        return half

    def renew(self) -> None:
        """Makes the half share nothing, because the engine's weights may differ from its files."""
        self._reset = True

    def close(self) -> None:
        """Closes the client. The thread reads until it has all of the weights, or the process ends."""
        self._client.close()
