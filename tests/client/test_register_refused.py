"""Wrong pairings fail when a cache is registered, with what to change; known layouts are recognised by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagetier.client import CacheGroup, Client, FullAttention, LayoutError, Recurrent
from pagetier.client.adapters import LAYOUT_NAMES
from pagetier.kernels.layout import engine_layouts

BLOCKS, BLOCK, HEADS, DIM = 6, 16, 4, 8


def zeros(*shape: int, dtype: str = "uint16") -> Any:
    return np.zeros(shape, dtype)


KV_SECOND = [zeros(BLOCKS, 2, BLOCK, HEADS, DIM) for _ in range(2)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Yields a client without a daemon, which a registration does not need."""
    with Client(tmp_path_factory.mktemp("no") / "no.sock", timeout=0.1) as alone:
        yield alone


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layout": ""}, "unknown layout '': use one of vllm, sglang"),
        ({"layout": "flash_attention"}, "must be 2, for K and V"),
        ({"layout": "sglang"}, "expected a tensor of shape"),
        ({"layout": "mla"}, "expected a tensor of shape"),
        ({"page_tokens": 40}, "set page_tokens to a multiple of 16"),
        ({"tp_size": 2}, "pass num_kv_heads, the KV heads of the whole model"),
        ({"tp_size": 3, "num_kv_heads": 8}, "8 heads cannot be divided among 3 ranks"),
        ({"tp_size": 2, "num_kv_heads": 4}, "4 heads, but rank 0 of 2 has 2 of 4"),
        ({"tp_size": 2, "tp_rank": 2, "num_kv_heads": 8}, "tp_rank = 2 with tp_size = 2: ranks count from 0"),
        ({"tp_rank": -1}, "tp_rank = -1 with tp_size = 1"),
        ({"tp_size": 0}, "tp_rank = 0 with tp_size = 0"),
        ({"tp_size": 64, "num_kv_heads": 256}, "a page has at most 32 parts"),
        ({"pp_layers": (3, 1)}, "the cache has 2 layers, but stage 0 has 3"),
        ({"layout": "states"}, 'a Recurrent group has the layout "states"'),
    ],
)
def test_a_wrong_pairing_says_what_to_change(client: Client, options: dict[str, Any], says: str) -> None:
    options = {"layout": "flashinfer", "page_tokens": 256} | options
    register: Any = client.register
    with pytest.raises(LayoutError, match=says):
        register(KV_SECOND, model="m", **options)


def test_a_dtype_without_a_name_must_be_given(client: Client) -> None:
    tensors = [zeros(BLOCKS, BLOCK, 8, dtype="V2")]
    with pytest.raises(LayoutError, match='pass dtype, such as "bfloat16"'):
        client.register(tensors, model="m", page_tokens=16, layout="mla")
    cache = client.register(tensors, model="m", page_tokens=16, layout="mla", dtype="bfloat16")
    assert cache.namespace.dtype == "bfloat16"


@pytest.mark.parametrize("page_tokens", [0, -1])
def test_pages_have_tokens(client: Client, page_tokens: int) -> None:
    with pytest.raises(ValueError, match="page_tokens must be 1 or more"):
        client.register(KV_SECOND, model="m", layout="flashinfer", page_tokens=page_tokens)


def test_unknown_and_missing_arguments_raise_type_errors(client: Client) -> None:
    register: Any = client.register
    with pytest.raises(TypeError, match="no argument tp_rnak"):
        register(KV_SECOND, model="m", layout="flashinfer", page_tokens=16, tp_rnak=1)
    for both in ({}, {"kv_caches": KV_SECOND, "groups": [CacheGroup(kv_caches=[], kind=FullAttention(16))]}):
        with pytest.raises(TypeError, match="either kv_caches or groups"):
            register(model="m", **both)
    with pytest.raises(TypeError, match="not of str"):
        register(["not a tensor"], model="m", layout="mla", page_tokens=16)


def test_states_and_attention_are_not_confused(client: Client) -> None:
    groups = [CacheGroup(kv_caches=KV_SECOND, layout="flashinfer", kind=Recurrent(16))]
    with pytest.raises(LayoutError, match='a Recurrent group has the layout "states"'):
        client.register(groups=groups, model="m")


_PAIR = [zeros(BLOCKS * BLOCK, HEADS, DIM)], [zeros(BLOCKS * BLOCK, HEADS, DIM)]
_LAYOUTS: dict[str, list[Any]] = {
    "vllm": [
        [zeros(BLOCKS, HEADS, BLOCK, 2 * DIM)],
        {"layer.0": zeros(2, BLOCKS, BLOCK, HEADS, DIM)},
        KV_SECOND,
        [zeros(BLOCKS, BLOCK, 576)],
    ],
    "sglang": [_PAIR, [zeros(BLOCKS * BLOCK, 1, 576)]],
    "lightllm": [zeros(2, BLOCKS * BLOCK, 2 * HEADS, DIM)],
    "flash_attention": [zeros(3, 2, BLOCKS, BLOCK, HEADS, DIM)],
    "flashinfer": [KV_SECOND],
    "separate_blocks": [([zeros(BLOCKS, BLOCK, HEADS, DIM)], [zeros(BLOCKS, BLOCK, HEADS, 2 * DIM)])],
    "mla": [[zeros(BLOCKS, BLOCK, 576)]],
    "states": [[[zeros(BLOCKS, 3, 5), zeros(BLOCKS, 7)]]],
    "rows": [[[zeros(BLOCKS, 3, 5), zeros(BLOCKS + 1, 7)], [zeros(BLOCKS, 2)]]],
}


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_the_layouts_of_engines_have_names(client: Client, layout: str) -> None:
    kind = Recurrent(64) if layout == "states" else FullAttention(64)
    for kv_caches in _LAYOUTS[layout]:
        (cache,) = client.register(groups=[CacheGroup(kv_caches=kv_caches, layout=layout, kind=kind)], model="m").caches
        assert cache.page_tokens == 64 and cache.paged.page.nbytes


def test_any_other_layout_is_given_as_a_cache_layout(client: Client) -> None:
    cache = client.register(engine_layouts.kv_second(KV_SECOND), model="m", page_tokens=32)
    named = client.register(KV_SECOND, layout="flashinfer", model="m", page_tokens=32)
    assert cache.namespace == named.namespace


def test_everything_that_determines_the_bytes_is_in_the_namespace(client: Client) -> None:
    own: dict[str, Any] = {"layout": "flashinfer", "model": "m", "page_tokens": 32}
    others: list[dict[str, Any]] = [
        {"model": "n"}, {"page_tokens": 64}, {"revision": "1"}, {"rope": "2"}, {"quantisation": "3"}, {"lora": "4"},
        {"salt": "5"}, {"dtype": "float16"},
    ]  # fmt: skip
    register: Any = client.register
    spaces = [register(KV_SECOND, **own | other).namespace.digest for other in [{}, *others]]
    assert len(set(spaces)) == len(spaces)
    assert register(KV_SECOND, **own).namespace.digest == spaces[0]


def test_a_format_of_floats_that_is_kept_as_bytes_is_named(client: Client) -> None:
    register: Any = client.register
    own: dict[str, Any] = {"layout": "flashinfer", "model": "m", "page_tokens": 32}
    kept = [np.zeros((BLOCKS, 2, BLOCK, HEADS, DIM), np.uint8)]
    with pytest.raises(LayoutError, match="elements of type uint8 may mean anything: pass dtype"):
        register(kept, **own)
    names = ("float8_e4m3", "float8_e5m2")
    assert len({register(kept, **own, dtype=name).namespace.digest for name in names}) == 2


def test_the_client_imports_no_library_that_it_does_not_need(tmp_path: Path) -> None:
    libraries = ["lmdb", "click", "rich", "torch", "triton"]
    code = f"import pagetier.client, sys; print([name for name in {libraries} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
