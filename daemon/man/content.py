"""Generates the manual pages of the programs and of pagetierd.toml from the commands and the table of settings."""

from __future__ import annotations

from itertools import groupby

import click
import msgspec

from pagetier import __version__
from pagetier.daemon.cli import main as pagetier
from pagetier.daemon.config.cli_options import table_subject
from pagetier.daemon.config.fields import Field, fields
from pagetier.daemon.config.live_settings import AT_ONCE
from pagetier.daemon.main import main as pagetierd
from pagetier.daemon.man.commands import bench_command, commands_page, help_of, write_commands, write_options
from pagetier.daemon.man.configuration_page import configuration_page
from pagetier.daemon.man.engine_settings import engine_settings_page
from pagetier.daemon.man.metrics_reference import metrics_reference
from pagetier.daemon.man.roff import Roff
from pagetier.shm.exit_codes import Exit

_SEE_ALSO = "`pagetier`(1), `pagetier-bench`(1), `pagetierd`(8), `pagetierd.toml`(5)"


def pagetier_page(release: str) -> str:
    """Returns pagetier(1), with all commands on one page."""
    page = Roff("pagetier", 1, release)
    page.section("name").text("pagetier - inspect and control the KV cache daemon of this host")
    page.section("synopsis").text("`pagetier` COMMAND [OPTIONS]")
    page.section("description").text(help_of(pagetier))
    page.section("commands")
    with click.Context(pagetier, info_name="pagetier") as ctx:
        write_commands(page, pagetier, ctx)
    _exits(page, list(Exit))
    page.section("shell completion").text(_COMPLETION).lines(_COMPLETION_LINES)
    page.section("see also").text(_SEE_ALSO)
    return str(page)


_COMPLETION = """bash, zsh and fish complete commands and options after one line in their start-up file:"""
_COMPLETION_LINES = (
    'eval "$(_PAGETIER_COMPLETE=bash_source pagetier)"    # ~/.bashrc',
    'eval "$(_PAGETIER_COMPLETE=zsh_source pagetier)"     # ~/.zshrc',
    "_PAGETIER_COMPLETE=fish_source pagetier | source     # ~/.config/fish/config.fish",
)


def bench_page(release: str) -> str:
    """Returns pagetier-bench(1)."""
    bench = bench_command()
    page = Roff("pagetier-bench", 1, release)
    page.section("name").text("pagetier-bench - measure engines, caches and copies on this host")
    page.section("synopsis").text("`pagetier-bench` COMMAND [OPTIONS]")
    page.section("description").text(help_of(bench))
    page.section("commands")
    with click.Context(bench, info_name="pagetier-bench") as ctx:
        write_commands(page, bench, ctx)
    page.section("see also").text(_SEE_ALSO)
    return str(page)


def pagetierd_page(release: str) -> str:
    """Returns pagetierd(8). It lists the options; pagetierd.toml(5) explains the settings."""
    page = Roff("pagetierd", 8, release)
    page.section("name").text(
        "pagetierd - keep KV pages in host memory and on disk for the inference engines of a host"
    )
    page.section("synopsis").text("`pagetierd` [--config FILE] [OPTIONS]")
    page.section("description").text(help_of(pagetierd))
    page.section("options")
    with click.Context(pagetierd, info_name="pagetierd") as ctx:
        write_options(page, pagetierd, ctx)
    page.section("log").text(_LOG)
    page.section("reload").text(_RELOAD)
    _exits(page, [Exit.OK, Exit.USAGE, Exit.REFUSED, Exit.UNFIT])
    page.section("see also").text(_SEE_ALSO)
    return str(page)


_LOG = """The log goes to stderr, one line per event, in logfmt: `ts`, `level`, `name`, `event` and `msg`, then the
values of the message as fields. If stderr belongs to journald, lines begin with their priority instead of the time:
`journalctl -u pagetierd -p warning` shows warnings and errors."""

_RELOAD = """SIGHUP (`systemctl reload pagetierd`) reloads the configuration. Settings that change at once are listed in
`pagetierd.toml`(5); the log names the others, which need a restart. An invalid configuration changes nothing."""


def _exits(page: Roff, codes: list[Exit]) -> None:
    page.section("exit status")
    for code in codes:
        page.item(str(code.value), f"{code.meaning}.")


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

[http]
listen = "/run/pagetier/http.sock"
"""
_UNITS = """A size is a number of bytes, or a number with a unit: K, M, G, T, P and KiB, MiB, GiB, TiB, PiB count in
1024, KB, MB, GB, TB, PB in 1000. A duration is a number of seconds, or a number with us, ms, s, m, h or d. A share is a
number from 0 to below 1, or a percentage. A mode is an octal string."""

_RELOADED = """SIGHUP (`systemctl reload pagetierd`) reloads the configuration. These settings change at once, all
others after a restart or a stop and a start, which the log says: """
_TAKEN_AWAY = """Removing a user or group from `access` does not disconnect its engines and observers: they keep their
connection until they close it, and the memory until their process ends. To revoke access at once, end the process."""


def settings_page(release: str) -> str:
    """Returns pagetierd.toml(5): each key with its variable, default and help text."""
    page = Roff("pagetierd.toml", 5, release)
    page.section("name").text("pagetierd.toml - the configuration of pagetierd")
    page.section("description").text(
        "A file in TOML, named by `--config` or by the variable `PAGETIER_CONFIG`. Each key can also be given as an"
        " environment variable, which overrides the file, and by `--set`, which overrides both. Unknown keys, unknown"
        " variables and invalid values are errors that name their place."
    )
    page.text(_UNITS)
    for section, keys in groupby(fields(), lambda field: field.section):
        page.section(f"[{section}]" if section else "top level")
        if section:
            page.text(table_subject(section) + ".")
        for field in keys:
            page.item(f"{field.key} = {field.setting.metavar}", f"{field.setting.help} {_names(field)}")
    page.section("reload").text(_RELOADED + ", ".join(f"`{path}`" for path in sorted(AT_ONCE)) + ".")
    page.text(_TAKEN_AWAY)
    page.section("example").lines(_EXAMPLE.splitlines())
    page.section("see also").text("`pagetierd`(8), `pagetier`(1)")
    return str(page)


def _names(field: Field) -> str:
    names = f"`{field.flag}`, `{field.variable}`" if field.has_flag else f"`{field.variable}`"
    if field.default is msgspec.NODEFAULT:
        return f"Default: depends on the user. {names}"
    default = field.setting.show(field.default)
    return f"Default: {default}. {names}" if default else f"Default: none. {names}"


def manual() -> dict[str, str]:
    """Returns the text of each manual page by its file name; the same on every host."""
    release = f"pagetier {__version__}"
    return {
        "pagetier.1": pagetier_page(release),
        "pagetier-bench.1": bench_page(release),
        "pagetierd.8": pagetierd_page(release),
        "pagetierd.toml.5": settings_page(release),
    }


def documents() -> dict[str, str]:
    """Returns the text of each generated file by its path below docs."""
    pages = {f"man/{name}": text for name, text in manual().items()}
    return pages | {
        "commands.md": commands_page(),
        "configuration.md": configuration_page(),
        "engine-settings.md": engine_settings_page(),
        "metrics.md": metrics_reference(),
    }
