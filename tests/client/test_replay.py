"""`pagetier replay` against real daemons: the hits of an exact LRU, no wrong page, whoever dies."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

from pagetier.client.keys import Keys
from pagetier.client.replay import replay as replay_command
from pagetier.client.replay.own import frame_bytes
from pagetier.client.replay.pattern import Pattern, wrong_pages
from pagetier.client.replay.run import Wanted, job_of
from pagetier.client.replay.show import show
from pagetier.client.replay.tally import Run, Tally
from pagetier.client.replay.trace import TraceError, read_trace
from pagetier.shm._core import Observer
from pagetier.shm.link import Link, LinkError
from pagetier.shm.protocol import BUILD, Observe
from running import RunningDaemon

BLOCK = 512
PAGE = 4096
WAIT_S = 30.0
COMMAND = [sys.executable, "-c", "from pagetier.client.replay import replay; replay()"]

Chain = list[int]


def chat(requests: int, seed: int) -> list[Chain]:
    """Prompts of a chat service: sessions that begin with one of three system prompts and grow."""
    dice = random.Random(seed)
    fresh = iter(range(10**9, 2 * 10**9))
    systems: list[Chain] = [[next(fresh) for _ in range(blocks)] for blocks in (1, 3, 5)]
    sessions: list[Chain] = []
    prompts: list[Chain] = []
    for _ in range(requests):
        going_on = sessions and dice.random() < 0.7
        start = sessions.pop(dice.randrange(max(0, len(sessions) - 12), len(sessions))) if going_on else None
        prompt = [*(start or dice.choice(systems)), *(next(fresh) for _ in range(dice.randrange(6)))]
        sessions.append(prompt)
        prompts.append(prompt)
    return prompts


def write_trace(path: Path, chains: list[Chain]) -> tuple[Path, int]:
    """The trace's file, every other prompt with a partial block at its end, and its tokens."""
    lines, tokens = [], 0
    for number, chain in enumerate(chains):
        rest = number % 2 * 77
        length = len(chain) * BLOCK + rest
        ids = [*chain, 5] if rest else chain
        lines.append(json.dumps({"timestamp": number, "input_length": length, "output_length": 1, "hash_ids": ids}))
        tokens += length
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path, tokens


class TailFirstLru:
    """An exact LRU of so many blocks; of one prompt the tail is older than the head."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[int, None] = OrderedDict()  # the coldest first
        self.hits = self.stored = self.refused = self.evicted = 0

    def handle(self, chain: Chain) -> None:
        missing = next((at for at, block in enumerate(chain) if block not in self.blocks), len(chain))
        self.hits += missing
        for block in chain:
            if block not in self.blocks:
                self._store(block, chain)
        for block in reversed(chain):
            if block in self.blocks:
                self.blocks.move_to_end(block)

    def _store(self, block: int, chain: Chain) -> None:
        if len(self.blocks) == self.capacity and not self._evict(set(chain)):
            self.refused += 1
            return
        self.blocks[block] = None
        self.stored += 1

    def _evict(self, in_use: set[int]) -> bool:
        for block in self.blocks:
            if block not in in_use:
                del self.blocks[block]
                self.evicted += 1
                return True
        return False


def environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}


def replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, env=environ(), check=False)


def replay_json(*arguments: object) -> dict[str, Any]:
    done = replay(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@contextmanager
def replaying(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The command while it runs; nothing of it is left after."""
    command = [*COMMAND, *map(str, arguments), "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environ(), start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    told, complaints = process.communicate(timeout=WAIT_S)
    assert told, complaints
    report: dict[str, Any] = json.loads(told)
    return report


@contextmanager
def observing(socket: Path) -> Iterator[Observer]:
    link = Link(socket, WAIT_S)
    greeting = link.greet(Observe(BUILD), WAIT_S)
    link.close()
    yield Observer(*greeting.descriptors)
    for descriptor in greeting.descriptors:
        os.close(descriptor)


def until(true: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Waits for something to become true, while the process lives."""
    ends = time.monotonic() + WAIT_S
    while not true():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < ends
        time.sleep(0.002)


def until_granted(pages: int, look: Observer, process: subprocess.Popen[str]) -> None:
    until(lambda: look.header()["granted"] > pages, process)


def clients_of(look: Observer) -> list[int]:
    return [slot["pid"] for slot in look.slots()]


def assert_all_let_go(look: Observer) -> None:
    """Of the clients nothing is left in the index: no slot, no pin, no reservation."""
    until(lambda: not look.slots() and not look.header()["open_entries"])
    header = look.header()
    assert header["used_frames"] == header["pages"]


# --- what is hit ----------------------------------------------------------------------------------------------


def test_one_client_hits_what_an_exact_lru_hits(tmp_path: Path) -> None:
    chains = chat(400, seed=1)
    chains.insert(200, list(range(100)))  # longer than the arena: its head is kept
    chains.insert(300, [])
    trace, tokens = write_trace(tmp_path / "chat.jsonl.gz", chains)
    model = TailFirstLru(64)
    for chain in chains:
        model.handle(chain)
    report = replay_json(trace, "--arena", 64 * PAGE, "--page-bytes", PAGE - 8)
    assert report["requests"] == len(chains)
    assert report["prompt_tokens"] == tokens
    assert report["hit_tokens_memory"] == model.hits * BLOCK
    assert report["hit_tokens_disk"] == 0
    assert report["token_hit_ratio"] == model.hits * BLOCK / tokens
    assert report["wrong_pages"] == 0
    assert (report["pages_stored"], report["pages_refused"]) == (model.stored, model.refused)
    assert report["evictions"] == model.evicted
    assert model.hits > 200 and model.refused == 36  # the trace is worth something


def test_three_clients_share_the_requests(tmp_path: Path) -> None:
    chains = chat(400, seed=2)
    trace, tokens = write_trace(tmp_path / "chat.jsonl.gz", chains)
    with RunningDaemon("4MiB", "4KiB") as daemon:
        report = replay_json(trace, "--socket", daemon.socket, "--clients", 3)
        with observing(daemon.socket) as look:
            assert_all_let_go(look)
    asked = sum(map(len, chains))
    told = [report[f"pages_{what}"] for what in ("stored", "present", "pending", "refused")]
    assert report["requests"] == 400 and report["prompt_tokens"] == tokens
    assert report["pages_asked"] == asked == sum(told)
    assert report["pages_loaded"] > asked / 4
    assert report["wrong_pages"] == report["clients_died"] == 0


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(requests=10, prompt_tokens=20_480, asked=40, loaded=10, wrong=2, stored=30, load_seconds=0.5)
    run = Run(tally=tally, seconds=2.0, evictions=7, clients=3, block_tokens=512, page_bytes=PAGE, deaths=["one"])
    show(run.report())
    lines = capsys.readouterr().out.splitlines()
    rows = {cells[0].strip(): cells[1].strip() for line in lines if len(cells := line.strip("│").split("│")) == 2}
    assert rows["hit in memory"] == "5,120 (25.00%)"
    assert rows["loaded and verified"] == "10 (40.0 KiB, 80.0 KiB/s)"
    assert rows["wrong"] == "2" and rows["evicted"] == "7"
    assert rows["clients"] == "3 (1 died)"
    assert rows["seconds"] == "2.0 (5 requests/s)"


# --- what is wrong --------------------------------------------------------------------------------------------


def test_a_page_with_other_bytes_is_found(tmp_path: Path) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", [[1, 2, 3]])
    job = job_of(wanted(trace), read_trace(trace, BLOCK), tmp_path)
    pages = Pattern(PAGE).of(job.keys)
    pages[1, -1] ^= np.uint64(1 << 40)
    with RunningDaemon("1MiB", "4KiB") as daemon:
        with daemon.client() as client:
            assert client.store(Keys(job.namespace, job.keys.tobytes()), pages).stored == 3
        done = replay(trace, "--socket", daemon.socket, "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["wrong_pages"] == 1 and report["pages_loaded"] == 3
    assert "1 page" in done.stderr


def wanted(trace: Path) -> Wanted:
    return Wanted(
        trace=trace,
        clients=1,
        arena=None,
        page_bytes=PAGE,
        block_tokens=BLOCK,
        requests=None,
        socket=None,
        json=True,
    )


def test_no_two_words_of_pages_are_alike() -> None:
    keys = np.random.default_rng(1).integers(0, 256, (20, 32), dtype=np.uint8)
    pattern = Pattern(PAGE)
    pages = pattern.of(keys)
    assert len(np.unique(pages)) == pages.size
    loaded = pages.copy()
    assert wrong_pages(loaded, pages) == 0
    loaded[3, 0] ^= np.uint64(1)
    loaded[7, 511] ^= np.uint64(1 << 63)
    assert wrong_pages(loaded, pages) == 2
    assert not pattern.space(20).any()


def test_a_page_takes_one_frame() -> None:
    assert [frame_bytes(size) for size in (8, 4096, 4104, 65536)] == [4096, 4096, 8192, 65536]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{}", "line 2: no request of a trace"),
        ("[", "line 2: no request of a trace"),
        ('{"input_length": 1024, "hash_ids": [1]}', "1024 tokens in 1 blocks are no blocks of 512"),
        ('{"input_length": 1024, "hash_ids": [1, 2, 3]}', "1024 tokens in 3 blocks"),
        ('{"input_length": 512, "hash_ids": [-1]}', "line 2: no request of a trace"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"input_length": 513, "hash_ids": [1, 2]}}\n{line}\n')
    with pytest.raises(TraceError, match=why):
        read_trace(path, BLOCK)


def test_a_cut_off_trace(tmp_path: Path) -> None:
    path, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(50, seed=1))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TraceError, match=r"chat\.jsonl\.gz"):
        read_trace(path, BLOCK)


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--socket", "/nowhere/pagetier.sock"], 3, "no daemon to replay against"),
        (["--block-tokens", "100"], 2, "no blocks of 100"),
        (["--page-bytes", "4097"], 2, "no multiple of 8"),
        (["--arena", "1GiB", "--socket", "/nowhere/pagetier.sock"], 2, "give one of them"),
        (["--arena", "1"], 2, "--arena-size"),
    ],
)
def test_what_can_not_be_replayed(tmp_path: Path, arguments: list[str], code: int, why: str) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", [[1]])
    done = CliRunner().invoke(replay_command, [str(trace), *arguments])
    assert done.exit_code == code
    assert why in done.output


# --- who dies -------------------------------------------------------------------------------------------------


def test_a_client_is_killed(tmp_path: Path) -> None:
    trace, tokens = write_trace(tmp_path / "chat.jsonl.gz", chat(1500, seed=4))
    with RunningDaemon("4MiB", "4KiB") as daemon, observing(daemon.socket) as look:
        with replaying(trace, "--socket", daemon.socket, "--clients", 2) as process:
            until_granted(300, look, process)
            os.kill(clients_of(look)[1], signal.SIGKILL)
            report = report_of(process)
            assert process.returncode == 1
        assert report["requests"] == 1500 and report["prompt_tokens"] == tokens
        assert report["clients_died"] == 1 and report["wrong_pages"] == 0
        assert_all_let_go(look)


def test_the_daemon_is_killed(tmp_path: Path) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(1500, seed=5))
    with RunningDaemon("16MiB", "16KiB") as daemon, observing(daemon.socket) as look:
        with replaying(trace, "--socket", daemon.socket, "--clients", 2, "--page-bytes", 16384) as process:
            until_granted(300, look, process)
            daemon.kill()
            time.sleep(0.02)  # they go on without a daemon, but are to see the next one
            clients = clients_of(look)
            for pid in clients:
                os.kill(pid, signal.SIGSTOP)
            daemon.start()
            granted = look.header()["granted"]
            for pid in clients:
                os.kill(pid, signal.SIGCONT)
            report = report_of(process)
            assert process.returncode == 0
        assert report["requests"] == 1500 and report["wrong_pages"] == report["clients_died"] == 0
        assert report["pages_refused"] > 0
        assert look.header()["granted"] > granted
        assert_all_let_go(look)


def test_its_own_daemon_is_killed(tmp_path: Path) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(1500, seed=6))
    with replaying(trace, "--arena", "4MiB") as process, own_daemon(process) as daemon:
        until_granted(100, daemon.look, process)
        os.kill(daemon.pid, signal.SIGKILL)
        report = report_of(process)
        assert report["requests"] == 1500 and report["wrong_pages"] == 0 and report["pages_refused"] > 0
    assert daemon.segments() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(3000, seed=7))
    with replaying(trace, "--arena", "4MiB") as process, own_daemon(process) as daemon:
        until_granted(100, daemon.look, process)
        family = [daemon.pid, *clients_of(daemon.look)]
        assert len(family) == 2 and len(daemon.segments()) == 3
        process.send_signal(number)
        process.communicate(timeout=WAIT_S)
        assert process.returncode != 0
        until(lambda: not any(map(lives, family)))
    assert daemon.segments() == []


class Own(NamedTuple):
    """The daemon that a replay started for itself."""

    pid: int
    name: str
    look: Observer

    def segments(self) -> list[Path]:
        return list(Path("/dev/shm").glob(f"{self.name}.*"))


@contextmanager
def own_daemon(process: subprocess.Popen[str]) -> Iterator[Own]:
    until(lambda: socket_of(process) is not None, process)
    pid, flags = daemon_of(process)
    socket = Path(flags["--socket"])
    until(lambda: answers(socket), process)
    with observing(socket) as look:
        yield Own(pid, flags["--name"], look)


def daemon_of(process: subprocess.Popen[str]) -> tuple[int, dict[str, str]]:
    """Its process and flags; 0 if there is none yet."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        flags = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
        if "--arena-size" in flags:
            return int(child), flags
    return 0, {}


def socket_of(process: subprocess.Popen[str]) -> str | None:
    return daemon_of(process)[1].get("--socket")


def answers(socket: Path) -> bool:
    try:
        Link(socket, WAIT_S).close()
    except LinkError:
        return False
    return True


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
