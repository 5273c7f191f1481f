"""Shows the fleet: a prompt that one host computed is loaded on another one, through a real S3 server.

`make demo-fleet` runs it, with the Python of the engines as argument. Two daemons on this machine stand for two hosts:
each has its own memory and knows the other one only by the store. It exits with 1 if bytes or logits differed, if a
page had to be computed twice, or if a process failed.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
from rich.table import Table

from fleet_messages import Event, Report, Task
from long_text import SHARED_TOKENS, TEXT_BYTES
from messages import Step
from processes import ARENA, Daemon, DemoError, engine_process
from show import Screen, Steps
from store_servers import ACCESS_KEY, SECRET_KEY, S3Server, s3_server

_OPEN_S = 30.0
_WRITTEN_S = 120.0  # a store that was late is tried again after up to 30 s
_ENGINE = Path(__file__).with_name("fleet_engine.py")
INTRO = f"""\
[bold]pagetier fleet demo[/bold]

Two hosts share the pages of a prompt through an S3 store. Both hosts are daemons
on this machine, with a memory of their own; the store is SeaweedFS, a real S3
server, on the loopback address. An engine on host A computes a text of {TEXT_BYTES:,}
bytes, a byte a token, with a Llama of random weights. Its pages go to the store.
An engine on host B, where nothing was computed yet, reads the same pages.
"""


class Host(Daemon):
    """A host: a daemon without a disk, whose fleet is the S3 store."""

    def __init__(self, name: str, folder: Path, url: str) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.label = name
        self._url = url

    @property
    def command(self) -> list[str]:
        """The command line. The store may be slow on a machine that two engines, two hosts and it share."""
        memory = ["--name", self.name, "--socket", str(self.socket), "--arena-size", ARENA]
        return ["pagetierd", *memory, "--set", f"remote.url={self._url}", "--set", "remote.ask_timeout=1s"]

    def fleet(self) -> dict[str, int | str]:
        """Returns the fleet's part of `pagetier stats --json`. Raises DemoError."""
        found: dict[str, int | str] = self.stats()["fleet"]
        return found

    def wait(self, field: str, value: int | str, seconds: float) -> None:
        """Waits until a field of the fleet's status has a value. Raises DemoError."""
        ends = time.monotonic() + seconds
        while (fleet := self.fleet())[field] != value:
            if time.monotonic() > ends:
                raise DemoError(f"the fleet of host {self.label} did not reach {field} = {value}: {fleet}")
            time.sleep(0.1)


class Demo:
    """The steps of the demo."""

    def __init__(self, screen: Screen, folder: Path, python: str, stack: ExitStack) -> None:
        self._screen = screen
        self._folder = folder
        self._program = [python, str(_ENGINE)]
        self._stack = stack

    def run(self) -> list[Report]:
        """Runs both engines and returns their reports. Raises DemoError if a process fails."""
        self._screen.say("[bold]Start[/bold] the store and two hosts")
        with self._screen.steps() as show_step:
            show_step(Step("start SeaweedFS with an empty bucket"))
            store = self._store()
            show_step(Step("start pagetierd on host A and on host B"))
            first, second = (self._host(name, store.url) for name in "AB")
        self._screen.say()
        on_a = self._engine(first, 1, "computes the text and stores its pages.")
        self._share(first, on_a.pages_stored)
        on_b = self._engine(second, 2, "has the same text and another question, and an empty memory.")
        self._show_stats(second)
        return [on_a, on_b]

    def _store(self) -> S3Server:
        folder = self._folder / "store"
        folder.mkdir()
        os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
        return self._stack.enter_context(s3_server(folder))

    def _host(self, name: str, url: str) -> Host:
        host = self._stack.enter_context(Host(name, self._folder / name, url))
        host.start()
        host.wait("standing", "open", _OPEN_S)
        return host

    def _engine(self, host: Host, number: int, what: str) -> Report:
        self._screen.say(f"[bold]The engine on host {host.label}[/bold] {what}")
        command = [*self._program, msgspec.json.encode(Task(str(host.socket), number)).decode()]
        with engine_process(command, self._folder / f"engine{number}.log") as lines, self._screen.steps() as steps:
            steps(Step("start Python, import torch and transformers"))
            report = follow(lines, steps)
        self._screen.say(summary_of(report))
        return report

    def _share(self, host: Host, pages: int) -> None:
        self._screen.say(f"[bold]Host {host.label}[/bold] writes the pages to the store beside its work.")
        with self._screen.steps() as show_step:
            show_step(Step(f"wait until all {pages} pages are in the store"))
            host.wait("written", pages, _WRITTEN_S)
        self._screen.say()

    def _show_stats(self, host: Host) -> None:
        fleet = host.fleet()
        names = ("questions", "found", "read", "read_bytes", "damaged", "openings")
        counters = ", ".join(f"{name} {fleet[name]:,}" for name in names if name in fleet)
        self._screen.say(f"[bold]pagetier stats[/bold] on host {host.label}, of the fleet: {counters}\n")


def follow(lines: Iterator[bytes], steps: Steps) -> Report:
    """Shows the steps of an engine, and returns its report. Raises DemoError if it ends without one."""
    for line in lines:
        match msgspec.json.decode(line, type=Event):
            case Step() as step:
                steps(step)
            case Report() as report:
                return report
    raise DemoError("an engine ended without a report")


def summary_of(report: Report) -> str:
    """Summarises an engine's report."""
    fleet = report.fleet
    read = fleet.read_pages * report.page_bytes
    rate = f", {read / 1e6 / fleet.read_s:,.0f} MB/s" if read else ""
    stored = f"; {report.pages_stored} pages of {report.page_bytes / 2**20:.1f} MiB stored" * bool(report.pages_stored)
    return (
        f"  the fleet had {fleet.located_pages} pages (asked in {1e3 * fleet.locate_s:.1f} ms);"
        f" {fleet.read_pages} read in {fleet.read_s:.2f} s{rate}\n"
        f"  {report.prompt_tokens:,} tokens: {report.memory_tokens:,} loaded,"
        f" {report.computed_tokens:,} computed{stored}\n"
        f"  logits equal at {report.positions_equal:,} of {report.computed_tokens:,} computed positions\n"
    )


def table_of(reports: list[Report]) -> Table:
    """Returns a table with a row for each host."""
    table = Table(title="Where the tokens came from, and the time to the first new one")
    for name in ("host", "prompt", "from the fleet", "computed", "first token", "uncached", "logits"):
        table.add_column(name, justify="left" if name == "logits" else "right")
    for host, report in zip("AB", reports, strict=True):
        tokens = (report.prompt_tokens, report.memory_tokens, report.computed_tokens)
        seconds = (report.first_token_s, report.first_token_uncached_s)
        verdict = "equal" if report.exact else "[bold red]differ"
        table.add_row(host, *(f"{n:,}" for n in tokens), *(f"{s:.2f} s" for s in seconds), verdict)
    return table


def wrong(reports: list[Report]) -> Iterator[str]:
    """Yields what differs from the expected result."""
    for host, expected, report in zip("AB", (0, SHARED_TOKENS), reports, strict=True):
        if report.memory_tokens != expected:
            yield f"host {host} loaded {report.memory_tokens} tokens instead of {expected}"
        if not report.exact:
            yield f"host {host} has equal logits at {report.positions_equal} of {report.computed_tokens} positions"
    digests = {report.fleet.digest for report in reports}
    if len(digests) != 1:
        yield f"the bytes of the pages differ: SHA-256 {', '.join(sorted(digests))}"


def show(screen: Screen, python: str) -> int:
    """Runs the whole demo and returns the exit code."""
    began = time.monotonic()
    screen.say(INTRO)
    with tempfile.TemporaryDirectory(prefix="pagetier-demo-") as folder, ExitStack() as stack:
        reports = Demo(screen, Path(folder), python, stack).run()
    screen.show(table_of(reports))
    found = list(wrong(reports))
    for line in found:
        screen.fail(line)
    if not found:
        digest = reports[0].fleet.digest
        screen.say(f"\nThe pages on both hosts are equal, byte by byte (SHA-256 {digest[:16]}...), and all logits")
        screen.say(f"are equal, bit by bit. It took {time.monotonic() - began:.0f} s in all.")
    return 1 if found else 0


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """Ends the demo like an error, so that it cleans up."""
    del frame
    sys.exit(128 + number)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    screen = Screen()
    try:
        code = show(screen, sys.argv[1])
    except (DemoError, AssertionError) as error:  # the store's server asserts that it listens
        screen.fail(str(error))
        code = 1
    except KeyboardInterrupt:
        screen.fail("interrupted; all processes of the demo are stopped")
        code = 128 + signal.SIGINT
    sys.exit(code)


if __name__ == "__main__":
    main()
