"""Tests `pagetier top`: once without a terminal, live on one, across a restart of the daemon."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console

from fake_snapshots import client, history, snapshot
from free_ports import free_ports
from pagetier.daemon.cli.top.history import History
from pagetier.daemon.cli.top.screen import ASCII, UNICODE, Charset, ScreenContext, charset_for, screen
from pagetier.daemon.stats.snapshot import Tiers
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon, namespace
from terminal import LiveTerminal, pagetier_on_terminal

PAGE = 60_000
STYLE = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")


def drawn(seen: History, charset: Charset = UNICODE, lines: int = 24, columns: int = 80) -> list[str]:
    console = Console(width=columns, height=lines, color_system=None, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(screen(seen, ScreenContext(Path("/run/pagetier/pagetier.sock"), lines, charset, columns)))
    return captured.get().splitlines()


def test_a_client_without_a_pid_is_named_by_slot_and_user() -> None:
    name = "vllm worker 0 of 8, node 17"
    seen = msgspec.structs.replace(snapshot(), clients=(client(pid=0, many=1000, name=name),))
    (row,) = (line for line in drawn(history((0.0, seen))) if "vllm" in line)
    assert row.startswith("user 1000: vllm wo") and row[20:].split()[0:2] == ["slot", "0"], row


def test_advice_is_not_cut() -> None:
    memory = msgspec.structs.replace(snapshot().tiers.memory, pages=1000, bytes=1000 * 2**15, used=1000 * 2**20)
    disk = msgspec.structs.replace(snapshot().disk, trouble="no space is left on the device " * 5 + "free some")
    seen = msgspec.structs.replace(snapshot(), tiers=Tiers(memory=memory, disk=memory), disk=disk)
    for columns in (60, 80):
        lines = drawn(history((0.0, seen)), columns=columns)
        assert max(map(len, lines)) <= columns
        text = " ".join(" ".join(lines).split())
        assert seen.frame_advice and seen.frame_advice in text and "free some" in text


def test_without_a_terminal_it_prints_once(daemon: RunningDaemon) -> None:
    keys = namespace().keys(range(64))
    with daemon.client(name="engine 7") as client:
        client.store(keys, np.zeros((4, PAGE), dtype=np.uint8))
        client.match(keys).release()
        result = daemon.pagetier("top", "--interval", "0.1")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    assert re.search(r"memory .* 256.0 KiB of +16.0 MiB +2% +4 of +256 pages", result.stdout)
    assert re.search(r"engine 7 .*100.0%", result.stdout)
    assert "disk" not in result.stdout


def test_the_largest_numbers_fit_in_80_columns() -> None:
    many = 1023 * 2**30 + 970 * 2**20
    seen = snapshot(hits=many, misses=many, pid=4194304, lookups=many, many=many)
    seen = msgspec.structs.replace(
        seen, clients=tuple(client(pid=4194304 - at, lookups=at, many=many, name="x" * 31) for at in range(56))
    )
    before = snapshot(pid=4194304, many=0)
    for charset in (UNICODE, ASCII):
        lines = drawn(history((0.0, before), (1.0, seen)), charset)
        assert max(map(len, lines)) <= 80, max(lines, key=len)
        assert len(lines) <= 24
        assert lines[-1].startswith("and ")


def test_a_rate_below_one_is_not_shown_as_none() -> None:
    before, after = (
        msgspec.structs.replace(
            snapshot(), lookups=msgspec.structs.replace(snapshot().lookups, lookups=lookups, missed_tokens=missed)
        )
        for lookups, missed in ((3, 0), (4, 254))
    )
    for seconds, missed, matches in ((1.0, "254/s", "1.0/s"), (2.0, "127/s", "0.5/s"), (40.0, "6.3/s", "<0.1/s")):
        (row,) = (line for line in drawn(history((0.0, before), (seconds, after))) if line.startswith("tokens"))
        assert row.split()[3:] == ["missed", missed, "matches", matches], row
    still = drawn(history((0.0, before), (1.0, before)))
    assert any(line.split()[5:] == ["matches", "0/s"] for line in still), still


def test_the_share_that_was_found_is_said_to_be_of_the_time_that_was_watched() -> None:
    for seconds, span in ((0.1, "in 1 s"), (59.4, "in 59 s"), (61.0, "in 1 min"), (299.5, "in 5 min")):
        lines = drawn(history((0.0, snapshot()), (seconds, snapshot())))
        assert any(line.startswith("found") and line.endswith(span) for line in lines), span


def test_a_disk_that_is_down_says_why() -> None:
    seen = snapshot()
    report = msgspec.structs.replace(seen.disk, trouble="its file system is full " * 9)
    lines = drawn(history((0.0, msgspec.structs.replace(seen, disk=report))))
    assert any("its file system is full" in line and len(line) <= 80 for line in lines)


def test_a_terminal_without_block_characters_gets_ascii() -> None:
    assert charset_for("utf-8") is UNICODE
    assert charset_for("ascii") is ASCII
    assert "\n".join(drawn(history((0.0, snapshot())), ASCII)).isascii()


def test_it_says_where_the_page_is(tmp_path: Path) -> None:
    (token := tmp_path / "token").write_text("a-token-of-16-characters")
    token.chmod(0o600)
    (port,), place = free_ports(1), tmp_path / "http.sock"
    for listen, shown in ((str(place), str(place)), (f"{place},{port}", f"http://127.0.0.1:{port}/")):
        with RunningDaemon(
            "1MiB", "64KiB", "--set", f"http.listen={listen}", "--set", f"http.token_file={token}"
        ) as daemon:
            lines = daemon.pagetier("top", "--interval", "0.1").stdout.splitlines()
        assert lines[1] == f"page at {shown}"


def live_top(daemon: RunningDaemon, kind: str = "xterm-256color") -> LiveTerminal:
    return LiveTerminal(["top", "--socket", str(daemon.socket), "--interval", "0.1"], kind=kind)


def test_it_is_live_until_q(daemon: RunningDaemon) -> None:
    with daemon.client(name="engine 8"), live_top(daemon) as live:
        assert live.until("engine 8"), live.text
        live.type("x")
        assert live.until("engine 8", beyond=live.seen)
        live.type("q")
        assert live.wait() == 0
    assert "\x1b[?1049h" in live.text
    assert live.text.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))
    lines = [STYLE.sub("", line) for line in re.split("\n|\x1b\\[H", live.text.replace("\r", ""))]
    assert max(map(len, lines)) <= 80


def test_a_dumb_terminal_gets_one_screen(daemon: RunningDaemon) -> None:
    with live_top(daemon, kind="dumb") as live:
        assert live.until("memory"), live.text
        assert live.wait() == 0
    assert "\x1b" not in live.text


def test_it_is_live_until_sigterm(daemon: RunningDaemon) -> None:
    with live_top(daemon) as live:
        assert live.until("memory"), live.text
        live.terminate()
        assert live.wait() == 0
    assert "\x1b[?1049l" in live.text


def test_it_waits_for_the_next_daemon() -> None:
    with RunningDaemon() as daemon, live_top(daemon) as live:
        assert live.until("incarnation 1"), live.text
        daemon.kill()
        assert live.until("waiting for the daemon"), live.text
        daemon.start()
        assert live.until("incarnation 2"), live.text
        live.type("q")
        assert live.wait() == 0


def test_without_a_daemon_the_terminal_stays_as_it_is(tmp_path: Path) -> None:
    shown = pagetier_on_terminal(["top", "--socket", str(tmp_path / "none.sock")])
    assert (shown.code, "\x1b[?1049h" in shown.text) == (Exit.UNREACHABLE, False)


def test_snapshots_cost_the_daemon_nothing(daemon: RunningDaemon) -> None:
    """They are taken while the daemon is stopped, too."""
    with live_top(daemon) as live:
        assert live.until("memory"), live.text
        daemon.signal(signal.SIGSTOP)
        try:
            for _ in range(10):
                assert live.until("memory", beyond=live.seen), live.text
        finally:
            daemon.signal(signal.SIGCONT)
        live.type("q")
        assert live.wait() == 0
