"""Imports SGLang on a machine without a GPU. Import this module before any other that imports SGLang."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
import unittest
from collections.abc import MutableSequence
from typing import Any
from unittest.mock import MagicMock

from transformers.utils import import_utils


class _StandIn(types.ModuleType):
    """A module in which every name exists. SGLang imports torchvision for images, and never uses it for caches."""

    __path__: MutableSequence[str] = []  # noqa: RUF012  a package without files

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, value := MagicMock(name=f"{self.__name__}.{name}"))
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


# transformers remembers that torchvision is missing, and so does not try to use it.
import_utils.is_torchvision_available()
import_utils.is_torchvision_v2_available()
sys.meta_path.insert(0, _Finder())
# SGLang's helpers for tests of servers import datasets. Its fixtures use one name of them.
sys.modules["sglang.test.test_utils"] = _helpers = types.ModuleType("sglang.test.test_utils")
_helpers.CustomTestCase = unittest.TestCase  # type: ignore[attr-defined]
