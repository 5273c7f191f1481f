"""What a service of systemd may not, though its user and root may. Nothing is changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pagetier.daemon.cli.doctor.result import Result, problem
from pagetier.daemon.config.schema import Config
from pagetier.daemon.host.host import Host

_UNITS = "etc/systemd/system"


def check_service_may_write(config: Config, host: Host) -> Iterator[Result]:
    """The folder of the disk tier, where a service of this name is installed: it may write to its own folders alone."""
    path, own = config.disk.path, Path("/var/lib") / config.name
    tenant = config.name.removeprefix("pagetier").removeprefix("-")
    kind = "pagetierd@" if tenant else "pagetierd"
    units = host.root / _UNITS
    if path is None or path.is_relative_to(own) or not (units / f"{kind}.service").exists():
        return
    service = kind + tenant
    if not any(_allows(text, path) for text in _texts(units, {f"{kind}.service", f"{service}.service"})):
        yield problem(
            "disk service",
            f"the service {service} may write below {own} alone: make {path} for its user, and"
            f" `systemctl edit {service}` with the lines [Service] and ReadWritePaths={path}",
        )


def _texts(units: Path, kinds: set[str]) -> Iterator[str]:
    """Of the units, and of what is dropped in."""
    for kind in sorted(kinds):
        for file in (units / kind, *sorted((units / f"{kind}.d").glob("*.conf"))):
            with contextlib.suppress(OSError):
                yield file.read_text(errors="replace")


def _allows(text: str, path: Path) -> bool:
    """Whether a line says that this folder, or one above it, may be written to."""
    lines = (line.partition("=") for line in text.splitlines())
    named = [
        word for key, _, words in lines if key.strip() in ("ReadWritePaths", "BindPaths") for word in words.split()
    ]
    return any(path.is_relative_to(word.lstrip("-+").partition(":")[0]) for word in named)
