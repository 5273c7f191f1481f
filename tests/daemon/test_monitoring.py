"""The dashboard and the alert rules name only metrics of a live scrape and headings of the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from disk_daemon import write_through
from eventually import eventually
from metrics_scrape import names_in, sample_names, scrape
from running_daemon import namespace

DOCS = Path(__file__).parents[2] / "docs"
EVENT = re.compile(r'event\(\s*"(\w+)"')


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Returns the names of the metrics of a daemon with all features."""
    folder = tmp_path_factory.mktemp("monitoring")
    flags = (
        "--set",
        f"metrics.listen={folder / 'metrics.sock'}",
        "--set",
        "disk.budget=1GiB",
        "--set",
        "quota=*: arena 0.1-1",
    )
    with write_through(*flags) as daemon, daemon.client() as client:
        client.store(namespace().keys(range(16)), [bytes(1000)])
        client.match(namespace().keys(range(16))).release()
        assert eventually(lambda: "pagetier_endless_hit_ratio" in sample_names(scrape(folder / "metrics.sock")))
        assert eventually(lambda: "pagetier_disk_file_bytes" in sample_names(scrape(folder / "metrics.sock")))
        return sample_names(scrape(folder / "metrics.sock"))


def dashboard() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((DOCS / "monitoring/grafana.json").read_text())
    return parsed


def rules() -> list[dict[str, Any]]:
    parsed = yaml.safe_load((DOCS / "monitoring/alerts.yml").read_text())
    return [rule for group in parsed["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Returns the panels of all rows, also of those that are folded."""
    return [panel for each in dashboard()["panels"] for panel in (each["panels"] if each["type"] == "row" else [each])]


def queries() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]
    yield from (rule["expr"] for rule in rules())


def test_every_metric_that_is_named_is_in_a_scrape(there: set[str]) -> None:
    named = set().union(*map(names_in, queries()))
    assert len(named) > 20
    assert named - there == set()


def test_an_unknown_metric_would_be_found(there: set[str]) -> None:
    assert names_in('rate(pagetier_no_such_thing_total{instance=~"pagetier_build"}[5m])') - there


def test_every_metric_is_explained(there: set[str]) -> None:
    page = (DOCS / "metrics.md").read_text()
    named = {re.sub("_(bucket|sum|count)$", "", name) for name in there if name.startswith("pagetier_")}
    explained = set(re.findall(r"^\| `(pagetier_\w+)` \|", page, re.MULTILINE))
    assert named == explained


def test_every_event_of_the_log_is_explained() -> None:
    rooms = [DOCS.parent / room for room in ("shm", "tiers", "daemon")]
    logged = {name for room in rooms for path in room.rglob("*.py") for name in EVENT.findall(path.read_text())}
    rows = [line.split("|")[1] for line in (DOCS / "monitoring.md").read_text().splitlines() if line.startswith("| `")]
    assert len(logged) > 20
    assert {name for name in logged if not any(f"`{name}`" in row for row in rows)} == set()


def test_every_query_of_the_dashboard_is_balanced() -> None:
    for query in queries():
        assert all(query.count(left) == query.count(right) for left, right in ("()", "{}", "[]")), query


def test_panels_do_not_overlap() -> None:
    shown = dashboard()["panels"]
    for together in (shown, *(row["panels"] for row in shown if row["type"] == "row")):
        assert_apart(together)


def assert_apart(together: Sequence[dict[str, Any]]) -> None:
    """Asserts that no two of these panels take the same place."""
    taken: set[tuple[int, int]] = set()
    for panel in together:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_panel_stands_in_a_row_and_says_what_it_shows() -> None:
    assert dashboard()["panels"][0]["type"] == "row"
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] not in ("short", "ops"), "a unit that says what is counted"
    everything = [*(each for each in dashboard()["panels"] if each["type"] == "row"), *panels()]
    assert len({panel["id"] for panel in everything}) == len(everything)


def test_rates_are_shown_as_rates() -> None:
    for panel in panels():
        unit = panel["fieldConfig"]["defaults"]["unit"]
        if unit.endswith("/s") or unit in ("binBps", "reqps"):
            assert all(" / " in target["expr"] or "rate(" in target["expr"] for target in panel["targets"]), unit


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_has_a_summary_and_a_link_to_the_documentation(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning"), "pagetier serves no wrong page, and engines compute"
    assert "$labels.instance" in rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    text = (DOCS.parent / page).read_text()
    headings = [line.lstrip("# ").lower().replace(" ", "-") for line in text.splitlines() if line.startswith("#")]
    assert anchor in headings
