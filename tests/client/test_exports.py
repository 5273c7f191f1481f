"""What `pagetier.client` and `pagetier.client.adapters` export."""

from __future__ import annotations

from inspect import getattr_static
from typing import get_type_hints

from pagetier import client
from pagetier.client import Client, adapters


def test_every_name_is_exported_once_and_exists() -> None:
    exported = [*client.__all__, *adapters.__all__]
    assert len(exported) == len(set(exported))
    for module in (client, adapters):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_an_engine_needs_few_names() -> None:
    assert len(client.__all__) <= 24
    assert len([name for name in dir(Client) if not name.startswith("_")]) <= 16


def test_an_attachment_can_be_used_and_not_ended() -> None:
    used = get_type_hints(getattr_static(Client, "attachment").fget)["return"]
    assert "wait_linked" in dir(used)
    assert {"start", "stop", "drop", "disown", "attach", "detach"} & set(dir(used)) == set()
