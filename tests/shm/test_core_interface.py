"""The interface of the C core: _core.pyi declares what the module has, and the module has what the headers define."""

from __future__ import annotations

import ast
import re
from enum import Enum
from pathlib import Path

import numpy as np
import pytest

from pagetier.kernels.layout.tables import PLANE, TOKENS
from pagetier.shm import _core
from pagetier.shm._core import (
    PLANE_LAYOUT,
    TOKENS_LAYOUT,
    EventReason,
    EventsResult,
    IdleResult,
    ReserveOutcome,
    StructLayout,
    TierFlag,
    WriteResult,
    WriteRule,
)

SHM = Path(__file__).parents[2] / "shm"
STUB = ast.parse((SHM / "_core.pyi").read_text())
CLASSES = [node for node in STUB.body if isinstance(node, ast.ClassDef)]
ENUMERATIONS: list[tuple[type[Enum], str, str]] = [
    (ReserveOutcome, "core/daemon/requests.h", "enum pt_outcome"),
    (WriteRule, "core/daemon/disk_devices.h", "enum pt_write_rule"),
    (WriteResult, "core/daemon/write_behind.h", "enum pt_write_result"),
    (TierFlag, "core/common/layout.h", "enum { PT_TIER"),
    (EventReason, "core/common/layout.h", "enum pt_reason"),
    (EventsResult, "core/client/event_reader.h", "enum pt_events"),
    (IdleResult, "core/daemon/idle_namespaces.h", "enum pt_idle_found"),
]


def declared(body: list[ast.stmt]) -> set[str]:
    """Returns the public names that these statements of the stub declare."""
    return public([name for node in body if (name := name_of(node))]) - {"Array"}  # an alias of the stub only


def name_of(node: ast.stmt) -> str:
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return node.name
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return ""


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_the_stub_declares_every_name_of_the_module_and_no_other() -> None:
    assert declared(STUB.body) == public(list(vars(_core)))


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_the_stub_declares_every_attribute_of_a_class_and_no_other(node: ast.ClassDef) -> None:
    defined = getattr(_core, node.name)
    inherited = {name for base in defined.__mro__[1:] for name in vars(base)}
    assert declared(node.body) == public([name for name in vars(defined) if name not in inherited])


@pytest.mark.parametrize(
    ("dtype", "layout"), [(PLANE, PLANE_LAYOUT), (TOKENS, TOKENS_LAYOUT)], ids=["planes", "tokens"]
)
def test_a_table_has_the_layout_of_the_struct_in_c(dtype: np.dtype[np.void], layout: StructLayout) -> None:
    """Kernels on a device read the same tables as plain 64-bit numbers, so there is no gap between the fields."""
    found = [(name, dtype.fields[name][1], dtype[name].itemsize) for name in dtype.names]  # type: ignore[index,union-attr]
    assert (dtype.itemsize, found) == (layout.size, list(layout.fields))
    assert [(offset, size) for _, offset, size in found] == [(offset, 8) for offset in range(0, layout.size, 8)]


@pytest.mark.parametrize(("defined", "header", "begin"), ENUMERATIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_an_enumeration_has_a_member_for_each_enumerator(defined: type[Enum], header: str, begin: str) -> None:
    text = re.sub(r"/\*.*?\*/", "", (SHM / header).read_text(), flags=re.DOTALL)
    enumerators = re.findall(r"PT_\w+", re.search(re.escape(begin) + r"[^}]*", text)[0])  # type: ignore[index]
    assert len(enumerators) == len(list(defined))
