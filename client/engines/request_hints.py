"""Reads what a request says of its session."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from pagetier.client.hints import Hint

NAME: Final = "pagetier"  # in kv_transfer_params, and as the type of an action of kv_hints
CUT_OFF: Final = (Hint.over(),)
"""The hints of a request that was cut off at its limit of tokens: it is rarely continued."""

CALLS_TOOL: Final = (Hint.returns_within(60.0),)
"""The hints of a request that ended at a stop token or text of the caller: it returns when the tool has ended."""


class RequestHints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `kv_transfer_params["pagetier"]` may say.

    Attributes:
        over: The session does not return.
        returns_within: The session returns within so many seconds after the end of the request.
        keep: The pages are to be kept for so many seconds.
        ttl: Seconds after which `over` or `returns_within` expires.
        prefetch: Whether pages of the prompt that are on disk are read.
    """

    over: bool = False
    returns_within: float | None = None
    keep: float | None = None
    ttl: float | None = None
    prefetch: bool = True

    def hints(self) -> Iterator[Hint]:
        """Yields the hints. Raises ValueError if a time is not positive, or if two hints contradict each other."""
        if self.over and self.returns_within is not None:
            raise ValueError("a session that is over does not return")
        if self.over:
            yield Hint.over() if self.ttl is None else Hint.over(self.ttl)
        if self.returns_within is not None:
            yield Hint.returns_within(self.returns_within, self.ttl)
        if self.keep is not None:
            yield Hint.keep(self.keep)


NOTHING: Final = RequestHints()


class _Action(msgspec.Struct):
    """An action of `kv_hints`. Types other than those below belong to others and are ignored."""

    action_type: str
    payload: dict[str, Any] = {}


class _Envelope(msgspec.Struct):
    actions: list[_Action] = []


class HintReader:
    """Reads the hints of requests. A wrong one is counted and logged once; the request is served without it.

    Args:
        log: The engine's log.
        count_wrong: Counts a request with wrong hints.
    """

    def __init__(self, log: logging.Logger, count_wrong: Callable[[], None]) -> None:
        self._log, self._count_wrong = log, count_wrong
        self._logged = False

    def read(self, request: Any, name: str) -> RequestHints:
        """Returns what a request says itself; NOTHING if it says nothing, or something wrong.

        Args:
            request: The engine's request.
            name: Its ID.
        """
        try:
            return _hints_of(request)
        except (ValueError, TypeError) as error:
            self._count_wrong()
            if not self._logged:
                self._log.warning("pagetier: ignoring the hints of request %s: %s", name, error)
                self._logged = True
            return NOTHING


def _hints_of(request: Any) -> RequestHints:
    """Returns the hints of kv_transfer_params["pagetier"], or else of kv_hints.

    Raises:
        ValueError: They have wrong values.
        TypeError: They are no objects of JSON.
    """
    params = getattr(request, "kv_transfer_params", None)
    given = params.get(NAME) if isinstance(params, Mapping) else None
    if given is not None:
        return _checked(msgspec.convert(given, RequestHints))
    envelope = getattr(request, "kv_hints", None)
    if envelope is None:
        return NOTHING
    said: deque[RequestHints] = deque([NOTHING], 1)
    for action in msgspec.convert(envelope, _Envelope, from_attributes=True).actions:
        said.extend(_of_action(action))
    return said[0]


def _of_action(action: _Action) -> Iterator[RequestHints]:
    kind = action.action_type.lower()
    if kind == NAME:
        yield _checked(msgspec.convert(action.payload, RequestHints))
    elif kind in ("retain", "pin"):
        yield _checked(msgspec.convert({"keep": action.payload.get("ttl", Hint.keep().ttl)}, RequestHints))
    elif kind == "demote":
        yield RequestHints(over=True)


def _checked(said: RequestHints) -> RequestHints:
    """Returns the hints. Raises ValueError if one is wrong, or if pages are to be kept without an end."""
    if said.keep is not None and math.isinf(said.keep):
        raise ValueError("only an operator keeps pages without an end: see `pagetier pages pin`")
    for _ in said.hints():
        pass
    return said
