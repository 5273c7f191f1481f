"""Generates docs/engine-settings.md from the settings of the engines' adapters and of copies."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from textwrap import fill
from typing import Final, get_args, get_type_hints

import msgspec

_HEAD: Final = """\
# Settings of engines

This page is generated from the docstrings of the settings (`make man`); do not edit it. All times
are seconds, unless a unit is allowed.
"""
_TABLES: Final = (
    (
        "vLLM",
        "vllm.settings.ConnectorSettings",
        """\
Keys of `"kv_connector_extra_config"`, or words `NAME=VALUE` in `PAGETIER`; times from 0 to 3600.
[vllm.md](vllm.md#settings) says more about them.""",
    ),
    (
        "SGLang's linker",
        "sglang.engine.settings.LinkerSettings",
        """\
Keys of `"linker_extra_config"`, or words `NAME=VALUE` in `PAGETIER`.
[sglang.md](sglang.md#settings) says more about them.""",
    ),
    (
        "SGLang's HiCache",
        "sglang.engine.settings.StorageSettings",
        """\
Keys of `--hicache-storage-backend-extra-config`, beside SGLang's own.""",
    ),
)
_ENGINES: Final = "pagetier.client.engines."  # as text, since the daemon does not import the client
_COPIES: Final = "pagetier.kernels.config.copy_settings."
_COPY_TABLE: Final = """\
An engine's copies follow the file that `PAGETIER_COPY_CONFIG` names, else
`~/.config/pagetier/copy.toml` (or below `$XDG_CONFIG_HOME`), else `/etc/pagetier/copy.toml`. Sizes,
bandwidths and times may have a unit: `"20GB/s"`. An unknown key or a wrong value is a
`SettingsError` that names it.

`pagetier-bench calibrate` measures the tables `[stores]` and `[loads]` on a GPU and writes them to
`copy.calibrated.toml` beside that file. A table in `copy.toml` replaces the measured one as a
whole."""
_ROWS: Final = """
| key | default, other values | meaning |
| -- | -- | -- |
"""
_ENTRY: Final = re.compile(r"^    (\w[\w, ]*): (.*(?:\n {8}.*)*)", re.MULTILINE)
_COLUMNS: Final = 100
_HIDDEN: Final = "switch"  # of the variable PAGETIER alone
_LINKS: Final = {
    "See LinkerSettings": "[as of the linker](#sglangs-linker)",
    "see load_modes()": "[more](vllm.md#load-or-compute)",
}
"""What is shown instead of a name in the code."""


def engine_settings_page() -> str:
    """Returns the page, the same on every host."""
    engines = (_section(title, f"{_ENGINES}{name}", text) for title, name, text in _TABLES)
    copies = _section("Copies", f"{_COPIES}CopySettings", f"{_COPY_TABLE}\n\n{_thresholds()}")
    return "\n".join((_HEAD, *engines, copies))


def _section(title: str, path: str, text: str) -> str:
    return f"## {title}\n\n{text}\n{_ROWS}" + "".join(f"{row}\n" for row in _rows(_struct(path)))


def _struct(path: str) -> type[msgspec.Struct]:
    module, _, name = path.rpartition(".")
    found: type[msgspec.Struct] = getattr(importlib.import_module(module), name)
    return found


def _rows(struct: type[msgspec.Struct]) -> Iterator[str]:
    """Yields a row for each setting in the section `Attributes` of the docstring."""
    values = get_type_hints(struct)
    for key, text in _entries(inspect.getdoc(struct) or ""):
        others = "".join(f", `{value}`" for value in get_args(values[key]) if value != _defaults(struct)[key])
        if key != _HIDDEN:
            yield f"| `{key}` | {_default(_defaults(struct)[key])}{others} | {text} |"


def _entries(docstring: str) -> Iterator[tuple[str, str]]:
    section = docstring.partition("\nAttributes:\n")[2].partition("\n\n")[0]
    for names, text in _ENTRY.findall(section):
        for name in names.split(", "):
            yield name, _linked(" ".join(text.split()).removesuffix("."))


def _linked(text: str) -> str:
    for name, link in _LINKS.items():
        text = text.replace(name, link)
    return text


def _defaults(struct: type[msgspec.Struct]) -> dict[str, object]:
    return {field.name: field.default for field in msgspec.structs.fields(struct)}


def _default(value: object) -> str:
    """Returns a default as a user would write it; nothing for a table."""
    if value is msgspec.NODEFAULT:
        return ""
    if isinstance(value, int) and value and value % (1 << 10) == 0:
        return f"{value >> 20} MiB" if value % (1 << 20) == 0 else f"{value >> 10} KiB"
    return f"`{value}`" if value != "" else "empty"


def _thresholds() -> str:
    """Returns what the docstring of the thresholds says after its first sentence, and their defaults."""
    struct = _struct(f"{_COPIES}Thresholds")
    text = " ".join((inspect.getdoc(struct) or "").split("\n\n")[1].split())
    shown = ", ".join(f"`{key}` {_default(value)}" for key, value in _defaults(struct).items())
    return fill(f"{text} Without a measurement: {shown}.", _COLUMNS)
