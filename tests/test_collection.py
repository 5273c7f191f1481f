"""Tests that pytest collects every test file, but for those with a target of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _pytest.pathlib import fnmatch_ex

TESTS = Path(__file__).parent


def test_no_folder_of_tests_is_skipped_but_those_of_engines_and_stores(pytestconfig: pytest.Config) -> None:
    skipped = pytestconfig.getini("norecursedirs")
    folders = {folder for file in TESTS.rglob("test_*.py") for folder in file.parents if TESTS in folder.parents}
    hidden = {str(folder.relative_to(TESTS)) for folder in folders if any(fnmatch_ex(p, folder) for p in skipped)}
    assert hidden == {"engines", "fleet", "llama_cpp_python", "sglang"}


def test_the_quick_set_of_the_engines_names_tests_that_exist() -> None:
    """The engines' tests are not collected here, and a test that was renamed stops `make test-engines` alone."""
    lines = (TESTS / "engines" / "quick-tests").read_text().splitlines()
    named = [line.split()[1].partition("::") for line in lines if line and not line.startswith("#")]
    missing = [f"{file}::{test}" for file, _, test in named if not _has_test(TESTS.parent / file, test)]
    assert named
    assert not missing


def _has_test(file: Path, test: str) -> bool:
    """Returns whether a file, or a folder of tests, exists, and defines the test that is named, if one is."""
    function = re.escape(test.partition("[")[0])
    return file.exists() and (not test or bool(re.search(rf"^def {function}\(", file.read_text(), re.MULTILINE)))
