"""SGLang's own fixtures for HiCache with a store behind it, with pagetier's storage in place of its `file` backend."""

from __future__ import annotations

import json
import tempfile
import unittest
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.test.kits.unified_radix_cache import fixtures, mixins
from sglang.test.kits.unified_radix_cache.config import CONFIGS, supports_hicache
from sglang.test.kits.unified_radix_cache.fixtures import match_prefix
from sglang.test.kits.unified_radix_cache.storage import UnifiedRadixCacheStorageFixtures

import sglang_host_copies
from sglang_model import RankArguments, Spec, write_config

_MARKER: Final = 7


class Kit:
    """Runs the cases in a process of its own."""

    def __init__(self, arguments: RankArguments) -> None:
        sglang_host_copies.install()
        get_parallel().override_permanently(
            tp_rank=0, pp_rank=0, dp_rank=0, attn_tp_rank=0, attn_dp_rank=0, attn_cp_rank=0, attn_dcp_rank=0
        )
        fixtures.get_device = lambda: "cpu"
        self._socket = arguments.extra["socket"]
        self._folder = tempfile.TemporaryDirectory(prefix="pagetier-kit-")

    def labels(self, case: str) -> list[str]:
        """Returns the names of SGLang's configurations in which a case has a meaning."""
        configs = [one for one in CONFIGS if supports_hicache(one) and not one.is_eagle]
        windows = [one for one in configs if one.has_swa and not one.has_mamba]
        match case:
            case "read_a_window":
                return [one.label for one in windows]
            case "read_the_rest_of_a_window":
                return [one.label for one in windows if one.sliding_window_size > one.page_size]
        return [one.label for one in configs if case in ("read_prompt", "read_after_a_miss") or not one.has_mamba]

    def run(self, label: str, case: str) -> str:
        """Runs one case in a configuration, and returns "passed", or why it failed or was skipped."""
        config = next(one for one in CONFIGS if one.label == label)
        kind = type("Case", (_Case,), {"cfg": config, "socket": self._socket, "folder": Path(self._folder.name)})
        result = unittest.TestResult()
        kind(case).run(result)
        return "".join(why for _, why in [*result.failures, *result.errors, *result.skipped]) or "passed"

    def close(self) -> None:
        """Removes the configurations of the models."""
        self._folder.cleanup()


class _Case(UnifiedRadixCacheStorageFixtures, unittest.TestCase):  # type: ignore[misc]  # SGLang is not installed there
    """The cases. Each tree that SGLang's fixtures make has a store of its own; a folder stands for what they share."""

    socket = ""
    folder = Path()

    def _init_hicache(self, cache: Any, **options: Any) -> None:
        folder = options.get("storage_dir", "")
        with patch.object(mixins, "ServerArgs", partial(self._published, folder)):
            super()._init_hicache(cache, **options)
        if folder:
            self.addCleanup(cache.cache_controller.storage_backend.close)

    def _published(self, folder: str, **given: Any) -> Any:
        """Returns SGLang's configuration of a tree, with pagetier's storage if there is a folder."""
        model = {
            "device": "cpu",
            "model_path": str(write_config(self.folder / self.cfg.label, Spec(heads=self.cfg.head_num))),
        }
        storage = {
            "hicache_storage_backend": "dynamic",
            "hicache_storage_backend_extra_config": json.dumps(self._config(folder)),
        }
        return get_context().override_server_args(**(given | model | (storage if folder else {}))).install()

    def _config(self, folder: str) -> dict[str, Any]:
        """Returns the configuration of pagetier's storage."""
        return {
            "backend_name": "pagetier",
            "module_path": "pagetier.client.engines.sglang",
            "class_name": "PagetierStorage",
            "interface_v1": 1,
            "prefetch_threshold": 1,
            "socket": self.socket,
            "weights": "kit",
            "salt": folder,
            "timeout": 10.0,
        }

    def read_prompt(self) -> None:
        """One tree stores a prompt, another one reads it and loads it back."""
        folder, seq = self._make_storage_dir(), self._buffer_swa_seq()
        expected = self._l3_produce(folder, seq, marker=_MARKER)
        tree, allocator, _ = self._l3_consumer(folder)
        self._read(tree, allocator, seq, expected)

    def read_after_a_miss(self) -> None:
        """A tree asks for a prompt before another one stores it, and again afterwards."""
        folder, seq = self._make_storage_dir(), self._buffer_swa_seq()
        tree, allocator, _ = self._l3_consumer(folder)
        self._consume_prefetch(tree, seq, CacheRequestHandle("early", 0))
        self.assertEqual(match_prefix(tree, seq).host_hit_length, 0)
        self._read(tree, allocator, seq, self._l3_produce(folder, seq, marker=_MARKER))

    def _read(self, tree: Any, allocator: Any, seq: list[int], expected: Any) -> None:
        """Reads a prompt from the store, loads it back, and compares its bytes."""
        self._consume_prefetch(tree, seq, CacheRequestHandle("read", 0))
        leaf = match_prefix(tree, seq).last_host_node
        self._load_back_node(tree, leaf)
        slots = tree.path_device_indices(leaf)
        self.assertEqual(len(slots), len(seq))
        for found, wanted in zip(self._snapshot_full_kv(allocator, slots), expected, strict=True):
            self.assertTrue(torch.equal(found, wanted))

    def attach_again(self) -> None:
        """A tree gets the store at run time, loses it and gets it again: both times it stores, and finds all pages."""
        tree, allocator, requests = self._build_hicache_fixture()
        config, seq = json.dumps(self._config(self._make_storage_dir())), self._make_seq(1, 4)
        self._insert(tree, allocator, requests, seq)
        for _ in range(2):
            self.assertTrue(*tree.attach_storage_backend("dynamic", storage_backend_extra_config_json=config))
            leaf = match_prefix(tree, seq).last_device_node
            if not tree.tree_core.is_backuped(leaf):
                self._backup_node(tree, leaf)
            self._write_path_to_l3(tree, leaf)
            self._flush_l3_backups(tree)
            hashes = self._all_page_hashes(tree, leaf)
            self.assertEqual(len(hashes), 4)
            self.assertEqual(tree.cache_controller.storage_backend.batch_exists(hashes), 4)
            self.assertTrue(*tree.detach_storage_backend())

    def read_into_a_tree_that_grows(self) -> None:
        """A tree without a host pool reads a prompt, of which another request computes the first page in between."""
        self._assert_sibling_head_is_trimmed(self._make_storage_dir(), self._buffer_swa_seq(), window_sized=False)

    def read_a_window(self) -> None:
        """A tree that has the full state of a prompt, and none of its window, reads the window."""
        self._read_window(0)

    def read_the_rest_of_a_window(self) -> None:
        """A tree that has the full state of a prompt, and the end of its window, reads the rest of the window."""
        self._read_window(self.cfg.page_size)

    def _read_window(self, tail: int) -> None:
        folder, seq = self._make_storage_dir(), self._buffer_swa_seq()
        self._produce_buffer_l3(folder, seq)
        self._assert_masked_full_is_reused(folder, seq, tail)
