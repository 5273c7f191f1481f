"""A request that decodes one token after the other, with CUDA graphs off or on."""

from __future__ import annotations

import time
from typing import Any

import torch

from paged_model import PagedModel, Pass, Step


class Decoding:
    """A request whose context is half full at the beginning. It starts again there when the context is full."""

    def __init__(self, model: PagedModel, table: Any, context: int) -> None:
        self._model, self._table, self._context = model, table, context
        self._half = context // 2
        device = model.device
        self._token = torch.zeros(1, dtype=torch.int64, device=device)
        self._position = torch.full((1,), self._half, device=device)
        self._places = torch.arange(context, device=device)
        self._slot = model.slots(self._position, table)
        self._mask = torch.zeros((1, 1, 1, context), dtype=torch.bool, device=device)
        Pass(model, model.step(torch.zeros(self._half, dtype=torch.int64, device=device), 0, table)).run()
        self._pass = Pass(model, Step(self._token, self._position, self._slot, table, self._mask))

    def capture(self) -> None:
        """Turns CUDA graphs on."""
        self._place(self._half)
        self._pass.capture()

    def seconds(self, steps: int) -> list[float]:
        """Returns the seconds of each of some steps, each until its token is on the host.

        A prefill of another request may slow a step a hundredfold, so no step begins after a second.
        """
        times: list[float] = []
        ends = time.perf_counter() + 1.0
        for number in range(steps):
            if times and time.perf_counter() > ends:
                break
            began = time.perf_counter()
            self._place(self._half + number % self._half)
            token = self._pass.run().argmax(-1)
            self._token.copy_(token)
            int(token)
            times.append(time.perf_counter() - began)
        return times

    def _place(self, position: int) -> None:
        self._position.fill_(position)
        self._slot.copy_(self._model.slots(self._position, self._table))
        torch.le(self._places, self._position, out=self._mask[0, 0, 0])
