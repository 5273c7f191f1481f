"""The four steps of the rule for the default socket, with real folders."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pagetier.shm.socket_path import DefaultSocket, default_socket, misspelt_variable

AS_NOBODY = 65534


def test_the_variable_has_priority(tmp_path: Path) -> None:
    (tmp_path / "pagetier").mkdir()
    assert default_socket({"PAGETIER_SOCKET": "/x/y.sock"}, tmp_path) == Path("/x/y.sock")
    assert default_socket({"PAGETIER_SOCKET": ""}, tmp_path) == tmp_path / "pagetier/pagetier.sock"


def test_the_system_folder_is_used_if_it_exists_or_can_be_created(tmp_path: Path) -> None:
    assert default_socket({"XDG_RUNTIME_DIR": "/u"}, tmp_path) == tmp_path / "pagetier/pagetier.sock"
    (tmp_path / "pagetier").mkdir()
    assert default_socket({"XDG_RUNTIME_DIR": "/u"}, tmp_path) == tmp_path / "pagetier/pagetier.sock"


def test_the_fallbacks_are_the_users_folder_and_tmp(tmp_path: Path) -> None:
    nowhere = tmp_path / "none"
    assert default_socket({"XDG_RUNTIME_DIR": "/u"}, nowhere) == Path("/u/pagetier/pagetier.sock")
    fallback = Path(f"/tmp/pagetier-{os.getuid()}/pagetier.sock")
    assert default_socket({}, nowhere) == fallback
    assert default_socket({"XDG_RUNTIME_DIR": "relative"}, nowhere) == fallback


def test_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGETIER_SOCKET", "/a/b.sock")
    assert default_socket() == Path("/a/b.sock")


@pytest.mark.parametrize(
    "name",
    [
        *("PAGETIER_SOKET", "PAGETIER_SOCKTE", "PAGETIER_SOCKETS", "PAGETIER_SOCK", "PAGETIER_SOCKET_PATH"),
        *("PAGETIR_SOCKET", "pagetier_socket", "PAGETIER-SOCKET"),
    ],
)
def test_a_variable_that_may_be_meant_is_found(name: str) -> None:
    assert misspelt_variable({"HOME": "/root", name: "/x/y.sock"}) == name


def test_other_variables_are_not_mistaken_for_it() -> None:
    names = ("PAGETIER", "PAGETIER_SOCKET", "PAGETIER_SERVICE", "PAGETIER_SERVICE_PORT", "PAGETIER_CONFIG", "SOCKET")
    assert misspelt_variable(dict.fromkeys((*names, "PAGETIER_METRICS", "VLLM_HOST_SOCKET"), "x")) == ""


def test_only_a_default_path_has_to_be_checked(tmp_path: Path) -> None:
    """Also in another process: the clients of a replay are given the path."""
    unnamed = default_socket({}, tmp_path)
    assert isinstance(unnamed, DefaultSocket)
    assert isinstance(pickle.loads(pickle.dumps(unnamed)), DefaultSocket)
    assert not isinstance(default_socket({"PAGETIER_SOCKET": "/x/y.sock"}, tmp_path), DefaultSocket)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("mode", "socket", "inside"),
    [
        *((0o755, True, True), (0o711, True, True), (0o750, True, False)),
        *((0o755, False, False), (0o711, False, False), (0o777, False, True)),
    ],
)
def test_another_user_takes_the_system_folder_if_it_may_create_the_socket_or_reach_it(
    mode: int, socket: bool, inside: bool
) -> None:
    """A daemon of another user would not start on the folder that root's daemon has left."""
    root = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    root.chmod(0o755)
    (root / "pagetier").mkdir()
    (root / "pagetier/pagetier.sock").touch() if socket else None
    (root / "pagetier").chmod(mode)
    code = (
        "import os, sys, pathlib; from pagetier.shm.socket_path import default_socket;"
        f"os.setgroups([]); os.setgid({AS_NOBODY}); os.setuid({AS_NOBODY});"
        "print(default_socket({'XDG_RUNTIME_DIR': '/u'}, pathlib.Path(sys.argv[1])))"
    )
    output = subprocess.check_output([sys.executable, "-c", code, str(root)], text=True).strip()
    assert output == (f"{root}/pagetier/pagetier.sock" if inside else "/u/pagetier/pagetier.sock")
    shutil.rmtree(root)
