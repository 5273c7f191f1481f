"""Configuration that all tests share."""

from __future__ import annotations

from contextlib import suppress

from injection.sweep import pytest_terminal_summary  # noqa: F401  a hook of pytest

# The environments of engines lack hypothesis. Health checks are off because a busy machine is slow at times.
with suppress(ImportError):
    from hypothesis import HealthCheck, settings

    settings.register_profile("pagetier", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("pagetier")
