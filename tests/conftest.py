"""What all tests share."""

from __future__ import annotations

from contextlib import suppress

from kill_points.summary import pytest_terminal_summary  # noqa: F401  a hook of pytest

# Engines' environments have no hypothesis. A busy machine is slow now and then: that is no finding.
with suppress(ImportError):
    from hypothesis import HealthCheck, settings

    settings.register_profile("pagetier", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("pagetier")
