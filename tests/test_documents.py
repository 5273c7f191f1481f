"""Relative links of Markdown files, and runbooks of alerts, lead to a file and a heading."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pagetier.kernels.layout.named_layouts import LAYOUT_NAMES

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FILE = re.compile(r"`((?:shm|kernels|tiers|client|daemon|systemd|examples|tests|bench|docs)/[\w./-]+)`")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    found = subprocess.run(["git", "-C", str(ROOT), "ls-files", "*.md"], capture_output=True, text=True, check=False)
    return [ROOT / name for name in found.stdout.split()] or sorted(ROOT.glob("docs/**/*.md"))


def anchors(page: Path) -> set[str]:
    headings = HEADING.findall(CODE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    return [link for link in LINK.findall(CODE.sub("", page.read_text())) if not leads_somewhere(page, link)]


def leads_somewhere(page: Path, link: str) -> bool:
    if link.startswith(("http:", "https:")):
        return True
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in anchors(target))


def missing(page: Path) -> Iterator[str]:
    """Yields the files of the repository that a page names and that do not exist."""
    return (name for name in FILE.findall(page.read_text()) if not (ROOT / name).exists() and "NAME" not in name)


# The pages name the files of the tree with src/pagetier.
@pytest.mark.skipif(not (ROOT / "src/pagetier").exists(), reason="the packages are not linked in src/pagetier")
@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page: Path) -> None:
    assert sorted(set(missing(page))) == []


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`shm/protocol.py`, `shm/no_such_file.py`, `tests/crash`, `/etc/shm/x`, `client/NAME/`\n")
    assert list(missing(page)) == ["shm/no_such_file.py"]


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[a](#a-heading) [b](#other) [c](missing.md) [d](https://example.com)\n")
    assert broken(page) == ["#other", "missing.md"]


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert [name for name in pages if f"({name})" not in index] == []


def test_every_alert_has_a_runbook() -> None:
    groups = yaml.safe_load((ROOT / "docs/monitoring/alerts.yml").read_text())["groups"]
    runbooks = [rule["annotations"]["runbook"] for group in groups for rule in group["rules"]]
    assert [link for link in runbooks if not leads_somewhere(ROOT / "x", link)] == []


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150 and len(text.split()) <= 1200


def first_cells(page: str, heading: str) -> list[str]:
    """Returns the code in the first column of the table below a heading."""
    section = (ROOT / "docs" / page).read_text().partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    return [
        name for cell in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall(r"`([^`]+)`", cell)
    ]


def test_the_table_of_layouts_is_complete() -> None:
    assert first_cells("api.md", "Layouts") == ["layout", *LAYOUT_NAMES]
