"""Tests which users the control socket's mode keeps out, and what the log says about it."""

from __future__ import annotations

import os
import stat

from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.server.control_socket import locked_out


def test_the_warning_names_the_setting_that_waits_for_a_restart() -> None:
    found = os.stat_result((stat.S_IFSOCK | 0o660, 0, 0, 1, 0, 7, 0, 0, 0, 0))
    for access, words in (
        (AccessOptions(groups=(8,)), 'set access.socket_mode = "0666" and restart'),
        (AccessOptions(groups=(8,), socket_group=(8,)), "access.socket_group waits for a restart"),
        (AccessOptions(users=(8,), socket_mode=0o666), 'access.socket_mode = "0666" waits for a restart'),
        (AccessOptions(users=(8,), socket_mode=0o600), 'set access.socket_mode = "0666" and restart'),
    ):
        assert words in locked_out(found, access)
    assert locked_out(found, AccessOptions(groups=(7,))) == locked_out(found, AccessOptions()) == ""
