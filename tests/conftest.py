"""Configuration that all tests share."""

from __future__ import annotations

from contextlib import suppress

import pytest

from injection.sweep import pytest_terminal_summary  # noqa: F401  a hook of pytest

# The environments of engines lack hypothesis. Health checks are off because a busy machine is slow at times.
with suppress(ImportError):
    from hypothesis import HealthCheck, settings

    settings.register_profile("pagetier", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("pagetier")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of the service first: they mostly wait, and one process boots their machine for all of them."""
    items.sort(key=lambda item: "systemd" not in item.path.parts)
