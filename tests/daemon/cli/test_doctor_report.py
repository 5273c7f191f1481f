"""`pagetier doctor --report` writes what a bug report needs, and nothing secret."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pagetier.daemon.cli import main
from pagetier.daemon.cli.doctor.bug_report import without_secrets
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon, namespace

TOKEN = "0123456789abcdef-token"
PEOPLE = {"alice": 1001}


def report_without_daemon(folder: Path, settings: str, **environ: str) -> Result:
    """Runs the command with a configuration and no daemon."""
    config = folder / "pagetierd.toml"
    config.write_text(settings)
    variables = {name: None for name in os.environ if name.startswith("PAGETIER_")}
    words = ["doctor", "--config", str(config), "--socket", str(folder / "s"), "--report", str(folder / "report")]
    return CliRunner(env={**variables, **environ}).invoke(main, words)


def test_a_report_has_versions_checks_settings_and_statistics(tmp_path: Path) -> None:
    with RunningDaemon() as daemon, daemon.client() as client:
        client.store(namespace().keys(range(32)), [bytes(1000)] * 2)
        result = daemon.pagetier("doctor", "--report", str(tmp_path / "report"))
        stats = json.loads(daemon.pagetier("stats", "--json").output)
    text = (tmp_path / "report").read_text()
    assert (result.exit_code, f"report in {tmp_path / 'report'}: read it" in result.output) == (Exit.OK, True)
    assert (tmp_path / "report").stat().st_mode & 0o777 == 0o600
    found = dict(part.split("]\n", 1) for part in text.split("\n\n[")[1:])
    assert list(found) == ["versions", "checks", "settings", "statistics"]
    assert "protocol" in found["versions"] and "\nlmdb " in found["versions"]
    assert "ok       integrity: " in found["checks"]
    assert "\narena.frame_size = " in found["settings"] and f"name = {daemon.name}" in found["settings"]
    assert json.loads(found["statistics"])["tiers"] == stats["tiers"]


def test_without_a_daemon_the_settings_are_those_of_the_file(tmp_path: Path) -> None:
    result = report_without_daemon(tmp_path, '[arena]\nsize = "2MiB"\nframe_size = "64KiB"\n')
    text = (tmp_path / "report").read_text()
    assert result.exit_code == Exit.WRONG
    config = tmp_path / "pagetierd.toml"
    assert f"arena.size = 2MiB  # {config}: arena.size\n" in text and "arena.prefault = populate  # default\n" in text
    assert f"socket = {tmp_path}/s  # flag --socket\n" in text
    assert "[statistics]\nno daemon: " in text


def test_no_secret_reaches_a_report(tmp_path: Path) -> None:
    token, key = tmp_path / "token", tmp_path / "key"
    for file, content in ((token, TOKEN), (key, "k" * 32)):
        file.write_text(content)
        file.chmod(0o600)
    settings = f'[http]\nlisten = "{tmp_path}/http"\ntoken_file = "{token}"\n[remote]\nurl = "file://{tmp_path}"\n'
    secret = "/wJalrXUtnFEMI/secret"[1:]
    report_without_daemon(tmp_path, f'{settings}key_file = "{key}"\n', AWS_SECRET_ACCESS_KEY=secret)
    text = (tmp_path / "report").read_text()
    assert f"http.token_file = {token}" in text, "the name of the file is no secret"
    assert not [word for word in (TOKEN, "k" * 32, secret) if word in text]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "remote.url = s3://bob:pass@b/kv?endpoint=https://x:y@h:1",
            "remote.url = s3://***@b/kv?endpoint=https://***@h:1",
        ),
        ('"python://m:C/p?password=x"', '"python://m:C/p?***"'),
        ("/home/alice/models/a, /srv/alice", "/home/1001/models/a, /srv/1001"),
        ("/home/carol/models/a", "/home/***/models/a"),
        ("belongs to user alice: usermod -aG pagetier", "belongs to user 1001: usermod -aG pagetier"),
        ("malice, alice-13b", "malice, alice-13b"),
        ("rejected hunter22-secret", "rejected ***"),
        ("uses /etc/pagetier/token", "uses /etc/pagetier/token"),
    ],
)
def test_secrets_and_names_are_replaced(text: str, left: str) -> None:
    environ = {"MY_API_TOKEN": "hunter22-secret", "TOKEN_FILE": "/etc/pagetier/token", "KEY": "s3"}
    assert without_secrets(text, environ, PEOPLE) == left


def test_a_file_that_exists_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("mine")
    result = report_without_daemon(tmp_path, "")
    assert (result.exit_code, "exists: remove it, or name another file" in result.output) == (1, True), result.output
    (tmp_path / "report").unlink()
    (tmp_path / "report").symlink_to(tmp_path / "elsewhere")
    assert report_without_daemon(tmp_path, "").exit_code == 1
    assert not (tmp_path / "elsewhere").exists()


def test_an_existing_report_is_named_before_all_checks(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("of last time")
    result = report_without_daemon(tmp_path, "")
    assert (result.exit_code, result.output) == (
        Exit.WRONG,
        f"Error: --report {tmp_path / 'report'} exists: remove it, or name another file\n",
    )
    assert (tmp_path / "report").read_text() == "of last time"
