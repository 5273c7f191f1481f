"""The package by itself: what its import costs, and `python -m pagetier`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pagetier
from pagetier.client import Client


def run(*words: str) -> str:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_imports_no_other_module_of_it() -> None:
    code = "import sys; import pagetier; print(pagetier.__version__, [n for n in sys.modules if 'pagetier' in n])"
    assert run("-c", code) == f"{pagetier.__version__} ['pagetier']\n"


def test_the_package_has_the_client_and_no_other_name() -> None:
    assert pagetier.Client is Client
    with pytest.raises(AttributeError, match="module 'pagetier' has no attribute 'Clients'"):
        _ = pagetier.Clients  # type: ignore[attr-defined]


def test_the_package_runs_as_the_command() -> None:
    assert run("-m", "pagetier", "--version").startswith(f"python -m pagetier {pagetier.__version__} (protocol ")
    assert run("-m", "pagetier", "--help").startswith("Usage: python -m pagetier ")
