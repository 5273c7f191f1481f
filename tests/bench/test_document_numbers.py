"""Tests that the documents have the numbers of the results files, and that a number which differs is found."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from race.documents.sentences import sentences
from race.documents.sources import FOLDER, Sources
from race.documents.tables import DOCUMENTS, MARK, ROOT, SECTIONS, written

TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
SOURCES = Sources()


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def has(page: str, sentence: str) -> bool:
    return sentence in " ".join(page.split())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tables_are_made_from_the_results(document: str) -> None:
    assert written(text_of(document), SOURCES) == text_of(document)


def test_each_table_is_in_one_document() -> None:
    assert sorted(name for document in DOCUMENTS for name in MARK.findall(text_of(document))) == sorted(SECTIONS)


def test_sentences_have_the_numbers_of_the_results() -> None:
    assert [(document, text) for document, text in sentences(SOURCES) if not has(text_of(document), text)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_number_in_a_table_that_differs_is_found(document: str) -> None:
    page = text_of(document)
    for table in MARK.finditer(page):
        row = table[0].splitlines()[-2]
        changed = page.replace(row, NUMBER.sub(lambda number: f"{number[0]}1", row))
        assert changed != page and written(changed, SOURCES) == page


def test_a_number_in_a_sentence_that_differs_is_found() -> None:
    assert not [text for document, text in sentences(SOURCES) if has(NUMBER.sub("7", text_of(document)), text)]


def test_another_result_makes_another_table(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "results")
    file = folder / "from-documents.json"
    file.write_text(file.read_text().replace("0.78", "0.79"))
    other = Sources(folder)
    assert all(written(text_of(document), other) != text_of(document) for document in DOCUMENTS)


def test_the_readme_has_no_other_table_of_numbers() -> None:
    section = text_of("README.md").split("## Performance\n")[1].split("\n## ")[0]
    assert len(TABLE.findall(section)) == len(MARK.findall(section)) == 1
