"""Generates docs/configuration.md from the table of settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from pagetier.daemon.config.cli_options import table_subject
from pagetier.daemon.config.fields import Field, fields
from pagetier.daemon.config.reload import AT_ONCE

_HEAD = """\
# Configuration

This page is generated from the table of settings (`make man`); do not edit it.

A setting can be given in three places. A flag overrides an environment variable, and a variable
overrides the file:

| place | `arena.size` is |
| -- | -- |
| TOML file (`--config FILE` or `PAGETIER_CONFIG`) | the key `size` in the table `[arena]` |
| environment | `PAGETIER_ARENA_SIZE` |
| flag of `pagetierd` | `--arena-size` |

`pagetierd --config FILE --check` validates a file. An unknown key, an unknown `PAGETIER_` variable
or an invalid value is an error that names its place.

| type | values |
| -- | -- |
| SIZE | bytes, or a number with a unit: K, M, G, T, P and KiB to PiB count in 1024, KB to PB in 1000 |
| DURATION | seconds, or a number with us, ms, s, m, h or d; at most 36500d |
| SHARE | a number from 0 to below 1 |
| MODE | an octal string |

A setting with "reload" changes at `systemctl reload pagetierd` (SIGHUP). All others wait for a
restart, and the log names them.
"""
_COLUMNS = ("setting", "value", "default", "change", "meaning")


def configuration_page() -> str:
    """Returns the page, the same on every host."""
    return _HEAD + "".join(_section(name, keys) for name, keys in groupby(fields(), lambda field: field.section))


def _section(name: str, keys: Iterable[Field]) -> str:
    heading = f"\n## [{name}]\n\n{table_subject(name)}.\n" if name else "\n## Top level\n"
    rows = [_row(_COLUMNS), _row(["--"] * len(_COLUMNS)), *(_row(_cells(field)) for field in keys)]
    return heading + "\n" + "\n".join(rows) + "\n"


def _cells(field: Field) -> Iterator[str]:
    yield f"`{field.path}`"
    yield field.setting.metavar
    yield _default(field)
    yield "reload" if field.path in AT_ONCE else "restart"
    yield field.setting.help


def _default(field: Field) -> str:
    if field.default is msgspec.NODEFAULT:
        return "depends on the user"
    shown = field.setting.show(field.default)
    return f"`{shown}`" if shown else ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
