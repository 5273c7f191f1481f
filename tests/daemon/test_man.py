"""The manual pages in the repository are current, complete and valid roff."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from pagetier.client.engines.sglang.engine.settings import LinkerSettings, StorageSettings
from pagetier.client.engines.vllm.settings import ConnectorSettings
from pagetier.daemon.cli import COMMANDS
from pagetier.daemon.cli.pages import PAGE_COMMANDS
from pagetier.daemon.config.fields import fields
from pagetier.daemon.man.content import documents, manual
from pagetier.daemon.man.markdown import Markdown
from pagetier.daemon.man.roff import Roff
from pagetier.kernels.config.copy_settings import CopySettings, Thresholds
from pagetier.shm.exit_codes import Exit

DOCS = Path(__file__).parents[2] / "docs"


def plain(name: str) -> str:
    return manual()[name].replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")


def test_the_pages_in_the_repository_are_current() -> None:
    assert {path.name for path in (DOCS / "man").iterdir()} == set(manual())
    for name, text in documents().items():
        assert (DOCS / name).read_text() == text, "run `make man`"


def test_every_command_and_exit_code_is_there() -> None:
    text = plain("pagetier.1")
    for name in COMMANDS:
        assert f".SS pagetier {name} " in text
    for name in PAGE_COMMANDS:
        assert f".SS pagetier pages {name} " in text
    for name in ("calibrate", "replay", "serve"):
        assert f".SS pagetier-bench {name} " in plain("pagetier-bench.1")
    for code in Exit:
        assert f"{code.value}\n{code.meaning}." in text


def test_every_setting_is_there_under_all_its_names() -> None:
    text = plain("pagetierd.toml.5")
    for field in fields():
        assert f"{field.key} = {field.setting.metavar}\n" in text
        assert f"{field.flag}, {field.variable}\n" in text if field.has_flag else f" {field.variable}\n" in text
        assert f"{field.flag} " in plain("pagetierd.8") or not field.has_flag


@pytest.mark.parametrize("name", manual())
def test_man_formats_the_pages_without_warnings(name: str) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed here")
    command = ["groff", "-man", "-ww", "-Tutf8", "-rLL=78n"]
    done = subprocess.run(command, input=manual()[name], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) > 40


def test_lines_that_begin_like_a_roff_request_are_escaped() -> None:
    page = str(Roff("x", 1, "x").text(".SH `no` order").lines(["'nor this"]).item("-x", "a\\b"))
    assert "\n\\&.SH \\fBno\\fR order\n" in page
    assert "\n\\&\\(aqnor this\n" in page
    assert "\\fB\\-x\\fR\na\\eb\n" in page


def test_every_command_is_on_the_page_of_commands() -> None:
    page = documents()["commands.md"]
    for name in COMMANDS:
        assert f"\n### pagetier {name} " in page and f"\n| `{name}` | " in page
    for name in PAGE_COMMANDS:
        assert f"\n### pagetier pages {name} " in page


@pytest.mark.parametrize("struct", [ConnectorSettings, LinkerSettings, StorageSettings, CopySettings])
def test_every_setting_of_an_engine_is_on_their_page(struct: type[msgspec.Struct]) -> None:
    page = documents()["engine-settings.md"]
    missing = [name for name in struct.__struct_fields__ if f"\n| `{name}` | " not in page]
    assert missing == [name for name in struct.__struct_fields__ if name == "switch"], "write it below Attributes:"
    assert all(f"`{name}` " in page for name in Thresholds.__struct_fields__)


def test_lines_break_outside_of_code_and_cells_are_escaped() -> None:
    code = f"`{'a b ' * 20}`"
    page = str(Markdown("x").text(f"{'word ' * 9}{code} end").item("-x [a|b]", "from 1<=x  on").section("y"))
    assert f"\n{code}" in page
    assert page.endswith("\n\n| option | meaning |\n| -- | -- |\n| `-x [a\\|b]` | from 1\\<=x on |\n\n## y\n")
