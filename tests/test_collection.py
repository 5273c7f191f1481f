"""Tests that pytest collects every test file, but for those with a target of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.pathlib import fnmatch_ex

TESTS = Path(__file__).parent


def test_no_folder_of_tests_is_skipped_but_those_of_engines_and_stores(pytestconfig: pytest.Config) -> None:
    skipped = pytestconfig.getini("norecursedirs")
    folders = {folder for file in TESTS.rglob("test_*.py") for folder in file.parents if TESTS in folder.parents}
    hidden = {str(folder.relative_to(TESTS)) for folder in folders if any(fnmatch_ex(p, folder) for p in skipped)}
    assert hidden == {"engines", "fleet", "llama_cpp_python", "sglang"}
