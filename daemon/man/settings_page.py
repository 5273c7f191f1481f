"""pagetierd.toml(5), out of the table of settings."""

from __future__ import annotations

from itertools import groupby

import msgspec

from pagetier.daemon.config.cli_options import about
from pagetier.daemon.config.reload import AT_ONCE
from pagetier.daemon.config.schema import Field, fields
from pagetier.daemon.man.roff import Roff

_EXAMPLE = """\
socket = "/run/pagetier/pagetier.sock"

[arena]
size = "64GiB"

[disk]
path = "/var/lib/pagetier"
size = "500GiB"

[access]
groups = ["inference"]

[metrics]
listen = "127.0.0.1:9464"
"""
_UNITS = """A size is a number of bytes, or a number with a unit: K, M, G, T, P and KiB, MiB, GiB, TiB, PiB count in
1024, KB, MB, GB, TB, PB in 1000. A duration is a number of seconds, or a number with us, ms, s, m, h or d. A share is a
number from 0 to below 1. A mode is an octal string."""

_RELOAD = """SIGHUP (`systemctl reload pagetierd`) reads the file again. What it says of these settings is in force at
once, of all others after a restart, which the log says: """
_TAKEN_AWAY = """Who is attached, or looks, when `access` names it no more keeps what it has until it closes its
connection, and the memory until its process ends: end the engine."""


def settings_page(release: str) -> str:
    """Each key with its variable, its flag, its default and its help."""
    page = Roff("pagetierd.toml", 5, release)
    page.section("name").text("pagetierd.toml - the configuration of pagetierd")
    page.section("description").text(
        "A file in TOML that is named by `--config` or by the variable `PAGETIER_CONFIG`. Each key can also be given as"
        " a variable, which is stronger than the file, and as a flag, which is stronger than both. A key, variable or"
        " value that makes no sense is refused, with its place."
    )
    page.text(_UNITS)
    for section, keys in groupby(fields(), lambda field: field.section):
        page.section(f"[{section}]" if section else "top level")
        if section:
            page.text(about(section) + ".")
        for field in keys:
            page.item(f"{field.key} = {field.setting.metavar}", f"{field.setting.help} {_names(field)}")
    page.section("reload").text(_RELOAD + ", ".join(f"`{path}`" for path in sorted(AT_ONCE)) + ".")
    page.text(_TAKEN_AWAY)
    page.section("example").lines(_EXAMPLE.splitlines())
    page.section("see also").text("`pagetierd`(8), `pagetier`(1)")
    return str(page)


def _names(field: Field) -> str:
    names = f"`{field.flag}`, `{field.variable}`"
    if field.default is msgspec.NODEFAULT:
        return f"Default: where it is for this user. {names}"
    default = field.setting.show(field.default)
    return f"Default: {default}. {names}" if default else f"Default: none. {names}"
