"""Tests `pagetier-bench replay` with real daemons: the hits equal those of an exact LRU, and all pages are verified."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from pagetier.client.cli.replay import replay as replay_command
from pagetier.client.cli.replay.page_content import Pattern, wrong_pages
from pagetier.client.cli.replay.private_daemon import frame_bytes
from pagetier.client.cli.replay.replay_report import CounterDeltas, ReplayCounts, ReplayResult, show
from pagetier.client.cli.replay.run import ReplayArguments, job_of
from pagetier.client.cli.replay.trace import TraceError, read_trace
from pagetier.client.keys import Keys
from replay_command import BLOCK, PAGE, Chain, assert_all_released, chat, observing, replay, replay_json, write_trace
from running_daemon import RunningDaemon


class TailFirstLru:
    """An exact LRU of `capacity` blocks. The tail of a prompt is older than its head."""

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


# --- Hits -----------------------------------------------------------------------------------------------------


def test_one_client_has_the_hits_of_an_exact_lru(tmp_path: Path) -> None:
    chains = chat(400, seed=1)
    chains.insert(200, list(range(100)))  # longer than the arena: its head is kept
    chains.insert(300, [])
    trace, tokens = write_trace(tmp_path / "chat.jsonl.gz", chains)
    model = TailFirstLru(64)
    for chain in chains:
        model.handle(chain)
    flags = ("--set=evict.policy=lru", "--set=evict.free=0")
    with RunningDaemon(str(64 * PAGE), str(PAGE), *flags) as daemon:
        report = replay_json(trace, "--socket", daemon.socket, "--page-bytes", PAGE - 8)
    assert report["requests"] == len(chains)
    assert report["prompt_tokens"] == tokens
    assert report["hit_tokens_memory"] == model.hits * BLOCK
    assert report["hit_tokens_disk"] == 0
    assert report["token_hit_ratio"] == model.hits * BLOCK / tokens
    assert report["wrong_pages"] == 0
    assert (report["pages_stored"], report["pages_refused"]) == (model.stored, model.refused)
    assert report["evictions"] == model.evicted
    assert model.hits > 200 and model.refused == 36  # the trace has hits and rejected pages


def test_three_clients_share_the_requests(tmp_path: Path) -> None:
    chains = chat(400, seed=2)
    trace, tokens = write_trace(tmp_path / "chat.jsonl.gz", chains)
    with RunningDaemon("4MiB", "4KiB") as daemon:
        report = replay_json(trace, "--socket", daemon.socket, "--clients", 3)
        with observing(daemon.socket) as observer:
            assert_all_released(observer)
    asked = sum(map(len, chains))
    by_outcome = [report[f"pages_{what}"] for what in ("stored", "present", "pending", "refused")]
    assert report["requests"] == 400 and report["prompt_tokens"] == tokens
    assert report["pages_asked"] == asked == sum(by_outcome)
    assert report["pages_loaded"] > asked / 4
    assert report["wrong_pages"] == report["clients_died"] == 0


def test_pages_that_a_policy_leaves_out_are_reported(tmp_path: Path) -> None:
    """Five prompts return in each round, beside one that never does: its pages are not worth their room."""
    chains = [
        chain
        for turn in range(400)
        for chain in (*([prompt * 100 + page for page in range(10)] for prompt in range(5)),
                      [10_000 + turn * 100 + page for page in range(30)])
    ]  # fmt: skip
    trace, _ = write_trace(tmp_path / "rounds.jsonl.gz", chains)
    with RunningDaemon("256KiB", "4KiB", "--set=evict.free=0") as daemon:
        report = replay_json(trace, "--socket", daemon.socket)
    by_outcome = [report[f"pages_{what}"] for what in ("stored", "present", "pending", "refused", "left_out")]
    assert report["pages_left_out"] > 0
    assert report["pages_asked"] == sum(map(len, chains)) == sum(by_outcome)


def test_the_table_has_the_counts_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    counts = ReplayCounts(requests=10, prompt_tokens=20_480, asked=40, loaded=10, wrong=2, stored=30, load_seconds=0.5)
    counts.left_out = 3
    result = ReplayResult(
        counts=counts,
        counters=CounterDeltas(evicted=7),
        disk_frames=0,
        seconds=2.0,
        clients=3,
        block_tokens=512,
        page_bytes=PAGE,
        deaths=["one"],
    )
    rows = rows_of(result, capsys)
    assert rows["hit in memory"] == "5,120 (25.00%)"
    assert rows["loaded and verified"] == "10 (40.0 KiB, 80.0 KiB/s)"
    assert rows["wrong content"] == "2" and rows["evicted"] == "7" and rows["left out"] == "3"
    assert rows["clients"] == "3 (1 died)"
    assert rows["seconds"] == "2.0 (5 requests/s)"
    assert not any(name.endswith("to disk") for name in rows)
    counts.from_disk = 4
    counters = CounterDeltas(
        evicted=7, disk_read=5, disk_read_bytes=5 * PAGE, disk_written=9, disk_written_bytes=9 << 20, disk_lost=2
    )
    rows = rows_of(msgspec.structs.replace(result, counters=counters, disk_frames=100), capsys)
    assert rows["hit in memory"] == "3,072 (15.00%)"
    assert rows["hit on disk"] == "2,048 (10.00%)"
    assert rows["hit in either"] == "5,120 (25.00%)"
    assert (rows["read from disk"], rows["written to disk"]) == ("5 (20.0 KiB)", "9 (9.0 MiB)")
    assert (rows["loaded from disk"], rows["evicted unwritten"]) == ("4", "2")


def rows_of(result: ReplayResult, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Returns the table's values by the names of its rows."""
    show(result.report())
    lines = capsys.readouterr().out.splitlines()
    return {cells[0].strip(): cells[1].strip() for line in lines if len(cells := line.strip("│").split("│")) == 2}


# --- Errors ---------------------------------------------------------------------------------------------------


def test_a_page_with_wrong_content_is_reported(tmp_path: Path) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", [[1, 2, 3]])
    job = job_of(arguments_for(trace), read_trace(trace, BLOCK), tmp_path)
    pages = Pattern(PAGE).of(job.keys)
    pages[1, -1] ^= np.uint64(1 << 40)
    with RunningDaemon("1MiB", "4KiB") as daemon:
        with daemon.client() as client:
            assert client.store(Keys(job.namespace, job.keys.tobytes()), pages).stored == 3
        done = replay(trace, "--socket", daemon.socket, "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["wrong_pages"] == 1 and report["pages_loaded"] == 3
    assert "1 of 3 loaded pages have wrong content" in done.stderr


def arguments_for(trace: Path) -> ReplayArguments:
    return ReplayArguments(
        trace=trace,
        clients=1,
        arena=None,
        disk=None,
        disk_path=None,
        disk_write=None,
        page_bytes=PAGE,
        block_tokens=BLOCK,
        page_blocks=1,
        requests=None,
        pace=0,
        socket=None,
        json=True,
    )


def test_all_words_of_all_pages_differ() -> None:
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
        ("{}", "line 2: not a request of a trace"),
        ("[", "line 2: not a request of a trace"),
        ('{"\xff\xfe": 1}', "line 2: not a request of a trace"),
        ('{"input_length": 1024, "hash_ids": [1]}', "1024 tokens in 1 blocks, not in blocks of 512"),
        ('{"input_length": 1024, "hash_ids": [1, 2, 3]}', "1024 tokens in 3 blocks"),
        ('{"input_length": 512, "hash_ids": [-1]}', "line 2: not a request of a trace"),
    ],
)
def test_an_invalid_line_is_rejected(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"input_length": 513, "hash_ids": [1, 2]}\n' + line.encode("latin-1"))
    with pytest.raises(TraceError, match=why):
        read_trace(path, BLOCK)


def test_a_trace_without_requests_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(TraceError, match=r"empty\.jsonl: no request in it"):
        read_trace(path, BLOCK)


def test_a_truncated_trace_is_rejected(tmp_path: Path) -> None:
    path, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(50, seed=1))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TraceError, match=r"chat\.jsonl\.gz"):
        read_trace(path, BLOCK)


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--socket", "/nowhere/pagetier.sock"], 3, "cannot reach the daemon"),
        (["--live", "--block-tokens", "100"], 2, "not in blocks of 100"),
        (["--page-bytes", "4097"], 2, "not a multiple of 8"),
        (["--arena", "1GiB", "--socket", "/nowhere/pagetier.sock"], 2, "exclude each other"),
        (["--arena", "1"], 2, 'pagetier-bench replay: flag --arena-size: "1" is too small'),
        (["--arena", "2TiB"], 4, "pagetier-bench replay: an arena of 2.0 TiB does not fit"),
        (["--disk", "1GiB"], 2, "--disk needs --arena: it configures the private daemon"),
        (["--socket", "/nowhere/pagetier.sock", "--disk", "1GiB"], 2, "--disk needs --arena"),
        (["--arena", "1MiB", "--disk-path", "/tmp"], 2, "--disk-path needs --disk"),
        (["--arena", "1MiB", "--disk-write", "evict"], 2, "--disk-write needs --disk"),
        (["--arena", "1MiB", "--disk", "1GiB", "--disk-write", "never"], 2, "'never' is not one of"),
        (["--arena", "1MiB", "--disk", "1GiB", "--clients", "56"], 2, "at most 55 clients"),
        (["--arena", "1MiB", "--disk", "little"], 2, "--disk-size"),
        (["--arena", "1MiB", "--disk", "1GiB", "--disk-path", "/proc/none"], 4, "cannot use the disk: /proc/none"),
        (["--pace", "-1"], 2, "--pace"),
        ([], 2, "give --arena SIZE for a private daemon, or --live to fill the running one"),
    ],
)
def test_invalid_options_and_an_unreachable_daemon_are_reported(
    tmp_path: Path, arguments: list[str], code: int, why: str
) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", [[1]])
    done = CliRunner().invoke(replay_command, [str(trace), *arguments])
    assert done.exit_code == code
    assert why in done.output
