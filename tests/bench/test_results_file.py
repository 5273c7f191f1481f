"""Tests of the results files of benchmarks, from which the documents' tables are made."""

from __future__ import annotations

import json
import re
from pathlib import Path

from results_file import save

MEASURED = {"measured": True, "device": "a machine", "results": []}


def test_a_results_file_has_the_date_that_the_tables_name(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    save(MEASURED, file)
    record = json.loads(file.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record.pop("date"))
    assert record == MEASURED


def test_results_are_not_replaced_where_nothing_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "results" / "fleet.json"
    save({"measured": False, "reason": "no disk"}, file)
    assert not json.loads(file.read_text())["measured"]
    save(MEASURED, file)
    save({"measured": False, "reason": "no disk"}, file)
    assert json.loads(file.read_text())["measured"]
