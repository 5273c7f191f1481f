"""The check of all tests of clients."""

from __future__ import annotations

from client_threads import no_client_is_left

__all__ = ["no_client_is_left"]
