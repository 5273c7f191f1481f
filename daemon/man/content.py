"""pagetier(1) and pagetierd(8), out of click's own knowledge of the commands."""

from __future__ import annotations

from importlib.metadata import version
from itertools import groupby

import click
import msgspec

from pagetier.daemon.cli import main as pagetier
from pagetier.daemon.common.exit_codes import Exit
from pagetier.daemon.config.cli_options import about, headed
from pagetier.daemon.config.reload import AT_ONCE
from pagetier.daemon.config.schema import Field, fields
from pagetier.daemon.main import main as pagetierd
from pagetier.daemon.man.configuration_page import configuration_page
from pagetier.daemon.man.roff import Roff

_SEE_ALSO = "`pagetier`(1), `pagetierd`(8), `pagetierd.toml`(5)"


def pagetier_page(release: str) -> str:
    """All commands on one page: there are few."""
    page = Roff("pagetier", 1, release)
    page.section("name").text("pagetier - look at the KV cache daemon of this host, and tell it what to do")
    page.section("synopsis").text("`pagetier` COMMAND [OPTIONS]")
    page.section("description").text(_help(pagetier))
    page.section("commands")
    with click.Context(pagetier, info_name="pagetier") as ctx:
        _commands(page, pagetier, ctx)
    _exits(page, list(Exit))
    page.section("shell completion").text(_COMPLETION).lines(_COMPLETION_LINES)
    page.section("see also").text(_SEE_ALSO)
    return str(page)


_COMPLETION = """Commands and options are completed by bash, zsh and fish, each by a line in its start-up file:"""
_COMPLETION_LINES = (
    'eval "$(_PAGETIER_COMPLETE=bash_source pagetier)"    # ~/.bashrc',
    'eval "$(_PAGETIER_COMPLETE=zsh_source pagetier)"     # ~/.zshrc',
    "_PAGETIER_COMPLETE=fish_source pagetier | source     # ~/.config/fish/config.fish",
)


def pagetierd_page(release: str) -> str:
    """The daemon: its options are named here, its settings explained in pagetierd.toml(5)."""
    page = Roff("pagetierd", 8, release)
    page.section("name").text(
        "pagetierd - keep KV pages in host memory and on disk for the inference engines of a host"
    )
    page.section("synopsis").text("`pagetierd` [--config FILE] [OPTIONS]")
    page.section("description").text(_help(pagetierd))
    page.section("options")
    with click.Context(pagetierd, info_name="pagetierd") as ctx:
        for heading, records in headed(pagetierd, ctx):
            page.subsection(heading)
            for term, text in records:
                page.item(term, text)
    page.section("log").text(_LOG)
    page.section("reload").text(_RELOAD)
    _exits(page, [Exit.OK, Exit.USAGE, Exit.REFUSED, Exit.UNFIT])
    page.section("see also").text(_SEE_ALSO)
    return str(page)


_LOG = """The log goes to stderr, a line an event, in logfmt: `ts`, `level`, `name`, `event` and `msg`, then numbers
of the sentence as fields of their own. Where stderr is journald's, lines begin with their priority instead of the time:
`journalctl -u pagetierd -p warning` shows those that somebody should read."""

_RELOAD = """On SIGHUP (`systemctl reload pagetierd`) the file is read again. What changes at once is listed in
`pagetierd.toml`(5); the rest waits for a restart, and is named in the log. What is wrong changes nothing."""


def _commands(page: Roff, group: click.Group, ctx: click.Context) -> None:
    """All that a group has, and what groups in it have."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        inner = click.Context(command, parent=ctx, info_name=name)
        _command(page, command, inner)
        if isinstance(command, click.Group):
            _commands(page, command, inner)


def _command(page: Roff, command: click.Command, ctx: click.Context) -> None:
    page.subsection(f"{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}")
    page.text(_help(command))
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and record[1] and "--help" not in record[0]:
            page.item(*record)


def _help(command: click.Command) -> str:
    return (command.help or "").replace("\f", "")


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
"""
_UNITS = """A size is a number of bytes, or a number with a unit: K, M, G, T, P and KiB, MiB, GiB, TiB, PiB count in
1024, KB, MB, GB, TB, PB in 1000. A duration is a number of seconds, or a number with us, ms, s, m, h or d. A share is a
number from 0 to below 1. A mode is an octal string."""

_RELOADED = """SIGHUP (`systemctl reload pagetierd`) reads the file again. What it says of these settings is in force at
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
    page.section("reload").text(_RELOADED + ", ".join(f"`{path}`" for path in sorted(AT_ONCE)) + ".")
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


def manual() -> dict[str, str]:
    """Returns the text of each manual page by its file name; the same on every host."""
    release = f"pagetier {version('pagetier')}"
    return {
        "pagetier.1": pagetier_page(release),
        "pagetierd.8": pagetierd_page(release),
        "pagetierd.toml.5": settings_page(release),
    }


def documents() -> dict[str, str]:
    """Returns the text of each generated file by its path below docs."""
    return {f"man/{name}": text for name, text in manual().items()} | {"configuration.md": configuration_page()}
