"""Attributes that are computed once, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class CachedProperty(Generic[T]):
    """functools.cached_property without its lock, which Python before 3.12 shares among all instances of a class.

    A child that is forked while another thread computes such an attribute inherits that lock and waits for it for ever.
    Threads that come at once each compute the value here; the last one stays, so it must not matter which.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> T | Self:
        if instance is None:
            return self
        value: T = self._compute(instance)
        instance.__dict__[self._name] = value
        return value
