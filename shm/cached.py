"""Attributes that are computed once, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class CachedProperty(Generic[T]):
    """A functools.cached_property without the lock that, before Python 3.12, all instances of a class share.

    If a process forks while another thread computes such an attribute, the child inherits the lock and waits for it
    forever. Here, concurrent threads each compute the value and the last one is kept, so computing must be repeatable.
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
