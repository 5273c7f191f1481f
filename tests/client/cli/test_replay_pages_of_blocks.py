"""Replays traces in blocks of 16 tokens, several of which form a page, against an arena and a disk that are full."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from disk_daemon import FRAME, DiskDaemon
from eventually import eventually
from pagetier.client.cli.replay.trace import read_trace
from pagetier.client.engines.block_groups import BlockGroup, blocks_of_page
from pagetier.client.groups import FullAttention
from pagetier.shm.geometry import DEFAULT_FRAME_BYTES
from replay_command import Chain, replay_json

_BLOCK: Final = 16
_SCALE: Final = 4
"""Pages and frames are this much smaller than real ones, and fill as much of each other."""

_TOKEN_BYTES: Final = {"llama-8b": 128 << 10, "qwen-half-b": 12 << 10, "deepseek-v3": 61 * 1152}
_ARENA: Final = 48 << 20
_PROMPT_TOKENS: Final = 384
_LEAST_SHARE: Final = 0.88
_MOST_WRITTEN: Final = 1.1


def group_of(model: str) -> BlockGroup:
    return BlockGroup(FullAttention(_BLOCK), _BLOCK * _TOKEN_BYTES[model])


def write_trace(path: Path, prompts: list[Chain]) -> Path:
    lines = ({"input_length": _BLOCK * len(prompt) + 3, "hash_ids": [*prompt, 5]} for prompt in prompts)
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def prompts_of(nbytes: int, token_bytes: int, seed: int) -> list[Chain]:
    """Returns prompts that have so many bytes beside their beginning, which is one of two common prefixes."""
    dice, fresh, blocks = random.Random(seed), iter(range(1000, 1 << 40)), _PROMPT_TOKENS // _BLOCK
    shared = [[next(fresh) for _ in range(blocks // 2)] for _ in range(2)]
    count = nbytes // (token_bytes * _PROMPT_TOKENS // 2)
    return [[*dice.choice(shared), *(next(fresh) for _ in range(blocks // 2))] for _ in range(count)]


@pytest.fixture(name="full")
def full_daemon() -> Iterator[DiskDaemon]:
    """Runs a daemon that writes each page, with frames of the default size, reduced like the pages."""
    frames = ("--set", f"arena.frame_size={DEFAULT_FRAME_BYTES // _SCALE}")
    with DiskDaemon(_ARENA // FRAME, f"{8 * _ARENA}", "--set", "disk.write=through", *frames) as daemon:
        daemon.wait_open()
        yield daemon


def replay_model(daemon: DiskDaemon, folder: Path, model: str, share: float, seed: int) -> None:
    """Replays prompts of a model in pages of as many blocks as its engine chooses; more than a share of the arena."""
    blocks, group = blocks_of_page([group_of(model)]), group_of(model)
    prompts = prompts_of(int(share * _ARENA), _TOKEN_BYTES[model] // _SCALE, seed)
    trace = write_trace(folder / f"{model}.jsonl", prompts)
    sizes = ("--block-tokens", _BLOCK, "--page-blocks", blocks, "--page-bytes", blocks * group.nbytes // _SCALE)
    report = replay_json(trace, "--socket", daemon.socket, *sizes)
    assert not report["wrong_pages"] and not report["pages_refused"], report
    hit = report["hit_tokens_memory"] + report["hit_tokens_disk"]
    assert hit and hit % (blocks * _BLOCK) == 0


def measured(daemon: DiskDaemon) -> tuple[float, float]:
    """Returns the share of a full arena that holds bytes of pages, and the bytes that were written for each."""
    assert eventually(lambda: not unwritten(daemon)), daemon.reported()
    assert eventually(lambda: all_reported(daemon)), daemon.reported()
    snapshot = daemon.snapshot()
    memory, disk = snapshot.tiers.memory, snapshot.disk
    assert memory.used >= 0.9 * _ARENA, "the arena is full"
    return memory.bytes / memory.used, disk.device_bytes / snapshot.tiers.disk.bytes_in


def all_reported(daemon: DiskDaemon) -> bool:
    """Returns whether the daemon's status, which is published now and then, has the writes of all frames on disk."""
    snapshot = daemon.snapshot()
    return snapshot.disk.device_bytes >= snapshot.tiers.disk.used


def unwritten(daemon: DiskDaemon) -> int:
    header = daemon.header()
    ended = header.disk_written + header.disk_skipped + header.disk_failed + header.disk_lost
    return header.granted - header.disk_read - ended


@pytest.mark.parametrize("model", _TOKEN_BYTES)
def test_a_full_arena_is_filled_with_blocks_of_sixteen_tokens(full: DiskDaemon, tmp_path: Path, model: str) -> None:
    replay_model(full, tmp_path, model, 1.3, seed=1)
    share, written = measured(full)
    assert share >= _LEAST_SHARE and written <= _MOST_WRITTEN


def test_a_full_arena_with_three_models_is_filled(full: DiskDaemon, tmp_path: Path) -> None:
    for seed, model in enumerate(_TOKEN_BYTES):
        replay_model(full, tmp_path, model, 0.6, seed)
    assert len(full.observer().spaces()) == 3
    share, written = measured(full)
    assert share >= _LEAST_SHARE and written <= _MOST_WRITTEN


def test_pages_of_one_block_fill_a_fifth_and_write_five_times_their_bytes(full: DiskDaemon, tmp_path: Path) -> None:
    group = group_of("qwen-half-b")
    trace = write_trace(tmp_path / "trace.jsonl", prompts_of(_ARENA // 4, _TOKEN_BYTES["qwen-half-b"] // _SCALE, 1))
    sizes = ("--block-tokens", _BLOCK, "--page-bytes", group.nbytes // _SCALE)
    replay_json(trace, "--socket", full.socket, *sizes)
    share, written = measured(full)
    assert share < 0.2 and written > 5


def test_blocks_that_form_a_page_have_the_id_of_the_last(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "trace.jsonl", [[*range(10, 21)], [10, 11, 12, 13]]), _BLOCK, None, 4)
    assert [trace.ids[trace.blocks(request)].tolist() for request in range(2)] == [[13, 17], [13]]
    assert trace.block_tokens == 4 * _BLOCK
    assert trace.prompt_tokens.tolist() == [11 * _BLOCK + 3, 4 * _BLOCK + 3]
