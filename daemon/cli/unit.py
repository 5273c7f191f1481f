"""`pagetier unit`: prints, installs and removes the systemd units of the installed package."""

from __future__ import annotations

import ipaddress
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from pagetier.daemon.cli import unit_removal
from pagetier.daemon.cli.confirmation import confirm
from pagetier.daemon.cli.unit_files import (
    UnitFile,
    addresses_file,
    described,
    exists,
    installable_files,
    installed_program,
    is_unmodified,
    marked,
    metrics_drop_in,
    write_whole,
)
from pagetier.daemon.config.cli_options import NonEmptyPath
from pagetier.daemon.host.folders import make_folders
from pagetier.shm.exit_codes import Exit

# 31 characters are the most for a user's name, and "pagetier-" takes 9 of them.
_NAME = re.compile("[a-z][a-z0-9_-]{0,21}")
_TAKEN = {
    "pagetierd": "the default daemon has this name",
    "copy": "/etc/pagetier/copy.toml is what engines read, see `pagetier-bench calibrate`",
}
_RULE = "1 to 22 of the characters a-z 0-9 _ -, the first of them a letter"


def tenant_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Returns a name that is valid for systemd, sysusers and file systems. Raises BadParameter, with the rule."""
    if value is None:
        return None
    if not _NAME.fullmatch(value):
        raise click.BadParameter(f'"{value}" cannot be a tenant\'s name: {_RULE}', ctx, param)
    if value in _TAKEN:
        raise click.BadParameter(f'"{value}" cannot be a tenant\'s name: {_TAKEN[value]}', ctx, param)
    return value


def remote_addresses(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Returns addresses that systemd can filter by. Raises BadParameter for others."""
    for address in value:
        try:
            ipaddress.ip_network(address, strict=False)
        except ValueError as error:
            if address not in _NAMED_ADDRESSES:
                named = ", ".join(_NAMED_ADDRESSES)
                raise click.BadParameter(
                    f"{address!r} is no network: write 10.0.0.0/8, or {named}", ctx, param
                ) from error
    return value


_NAMED_ADDRESSES = ("any", "localhost", "link-local", "multicast")
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
_WHAT_IS_HIDDEN = "/home, /root and /tmp are hidden from it"


@click.group()
def unit() -> None:
    """Print, install or remove the systemd units, the system user and an example configuration."""


_with_metrics = click.option(
    "--metrics", is_flag=True, help="Include the drop-in that a port in metrics.listen or http.listen needs."
)


_with_remote = click.option(
    "--remote",
    "addresses",
    multiple=True,
    callback=remote_addresses,
    metavar="ADDRESSES",
    help="Include the unit of the fleet's worker, which may reach these addresses (10.0.0.0/8, localhost); repeatable.",
)


@unit.command("print")
@click.option("--tenant", callback=tenant_name, metavar="NAME", help="The files for one tenant's own daemon.")
@_with_metrics
@_with_remote
def print_units(tenant: str | None, metrics: bool, addresses: tuple[str, ...]) -> None:  # noqa: FBT001  click calls it so
    """Print the files and their locations; changes nothing."""
    for file in installable_files(tenant, addresses, metrics=metrics):
        click.echo(f"# ---- {file.place}\n{file.content.decode()}")


@unit.command(short_help="Install the units; starts nothing, keeps an existing configuration.")
@click.option("--root", type=NonEmptyPath(), default=Path("/"), help="Install under this folder. [default: /]")
@click.option("--tenant", callback=tenant_name, metavar="NAME", help="The files for one tenant's own daemon.")
@_with_metrics
@_with_remote
@click.option("--force", "replace", is_flag=True, help="Replace modified units, and links in their place.")
def install(
    root: Path,
    tenant: str | None,
    metrics: bool,  # noqa: FBT001  click calls it so
    addresses: tuple[str, ...],
    replace: bool,  # noqa: FBT001
) -> None:
    """Install the units; starts nothing, and never changes an existing configuration.

    Unmodified units and drop-ins of an earlier version are replaced, and so are those of --metrics and --remote if they
    are installed.
    Put your own changes into a drop-in of your own (systemctl edit). A link, for example a masked unit, counts as
    modified.

    Exit codes: 0: installed; 1: a file could not be written, or was modified.
    """
    metrics = metrics or (root / metrics_drop_in(tenant)).exists()  # an installed one must be of the same version
    addresses = addresses or _installed_addresses(root, tenant)
    files = list(installable_files(tenant, addresses, metrics=metrics))
    changed = [file for file in files if not _install_file(root, file, replace=replace)]
    for warning in (*_warnings(installed_program()), *_unreadable(root, files)):
        click.echo(f"warning: {warning}", err=True)
    _require_none(root, changed)
    name = f"pagetierd@{tenant}" if tenant else "pagetierd"
    names = f"{name} pagetierd-remote{f'@{tenant}' if tenant else ''}" if addresses else name
    click.echo(f"now: {_next_step(root, names)}")


def _next_step(root: Path, names: str) -> str:
    """Returns the commands that enable the units; below another folder nothing can be started."""
    if root.resolve() == Path("/"):
        return f"systemd-sysusers && systemctl daemon-reload && systemctl enable --now {names}"
    at = f"--root={shlex.quote(str(root))}"
    return f"systemd-sysusers {at} && systemctl {at} enable {names}"


def _require_none(root: Path, modified: Sequence[UnitFile]) -> None:
    if modified:
        names = ", ".join(described(root, file) for file in modified)
        advice = "put changes into a drop-in (systemctl edit), then --force replaces them"
        raise click.ClickException(f"modified, so not replaced: {names}; {advice}")


def _installed_addresses(root: Path, tenant: str | None) -> tuple[str, ...]:
    """Returns any address if the unit of the fleet's worker is installed: it must be of the same version."""
    return ("localhost",) if (root / addresses_file(tenant)).exists() else ()


def _install_file(root: Path, file: UnitFile, *, replace: bool) -> bool:
    """Writes a file. Returns False if a modified one exists and stays."""
    path = root / file.place
    try:
        there = path.read_bytes() if path.is_file() else b""
        if there == marked(file.content) or (file.keep and exists(path)):
            return True
        if exists(path) and not (replace or is_unmodified(path, there)):
            return False
        make_folders(path.parent)
        write_whole(path, marked(file.content), 0o644)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    click.echo(f"installed {path}")
    return True


@unit.command(short_help="Remove the installed files; modified ones stay.")
@click.option("--root", type=NonEmptyPath(), default=Path("/"), help="Remove under this folder. [default: /]")
@click.option("--tenant", callback=tenant_name, metavar="NAME", help="The files of one tenant's own daemon.")
@click.option("--purge", is_flag=True, help="Also remove the folders of the disk tier, and the user; asks first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(root: Path, tenant: str | None, purge: bool, yes: bool) -> None:  # noqa: FBT001  click calls it so
    """Remove what `pagetier unit install` has installed; the service must be stopped and disabled.

    Files that were modified are named and stay. With --purge, the folders that the configuration names in disk.path and
    /var/lib/pagetier follow, if they contain files of the disk tier only, and then the user and group of the service.

    Exit codes: 0: removed (a modified configuration stays); 1: a unit was modified, or something could not be removed.
    """
    service = unit_removal.InstalledService(root, tenant)
    service.require_stopped()
    question = unit_removal.question_of(service) if purge else ""
    if question and not yes:
        confirm(question, "to remove them")
    installed = any(service.installed_files())
    modified = unit_removal.remove_files(service)
    click.echo(_after_removal(root) if installed else "no unit is installed")
    if (question and not unit_removal.purge(service)) or not all(file.keep for file in modified):
        sys.exit(Exit.WRONG)


def _after_removal(root: Path) -> str:
    return "now: systemctl daemon-reload" if root.resolve() == Path("/") else "nothing has to be reloaded"


def _warnings(program: str) -> Iterator[str]:
    """Yields reasons why the unit could not start its program."""
    base = str(Path(sys.executable).resolve())
    if hidden := next(filter(_is_hidden, (program, str(Path(program).resolve()))), ""):
        yield f"the service cannot access {hidden}, as {_WHAT_IS_HIDDEN}; install to /opt or /usr"
    elif _is_hidden(base):
        yield (
            f"the service cannot access {base}, the Python that this environment was made with, as {_WHAT_IS_HIDDEN};"
            " make the environment again with a Python below /usr or /opt: /usr/bin/python3 -m venv FOLDER"
        )


def _is_hidden(path: str) -> bool:
    return path.startswith(tuple(f"{folder}/" for folder in _HIDDEN))


def _unreadable(root: Path, files: Sequence[UnitFile]) -> Iterator[str]:
    """Yields what keeps the service's user from a configuration file that an earlier installation left."""
    for file in files:
        folders = [root / folder for folder in file.place.parents][-2::-1] if file.place.suffix == ".toml" else []
        closed = [str(folder) for folder in folders if not _allows(folder, stat.S_IXOTH, stat.S_IXGRP)]
        if closed:
            yield f"the service may not enter {closed[0]}: chmod o+x {closed[0]}"
        elif folders and not _allows(root / file.place, stat.S_IROTH, stat.S_IRGRP):
            yield f"the service may not read {root / file.place}: chmod o+r {root / file.place}"


def _allows(path: Path, others: int, group: int) -> bool:
    """Returns whether a path has a right for all users; or for a group, which an administrator has then chosen."""
    try:
        found = path.stat()
    except FileNotFoundError:  # a link to what is mounted later
        return True
    return bool(found.st_mode & others or (found.st_gid and found.st_mode & group) or found.st_uid)
