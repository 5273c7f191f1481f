"""Keys compared with a second implementation of their formula, which client/keys.py states."""

import pickle
import struct
from array import array
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetier.client.keys import Keys, Namespace
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Prompt

NS = Namespace(model="meta/llama-8b", dtype="bfloat16", page_tokens=4)

tokens_lists = st.lists(st.integers(0, 2**32 - 1), max_size=40)
page_sizes = st.integers(1, 9)


def reference_digest(**fields: Any) -> bytes:
    defaults = dict.fromkeys(("revision", "layout", "rope", "quantisation", "lora", "salt"), "")
    given_fields = defaults | {"group": "full"} | fields
    order = ["model", "revision", "dtype", "page_tokens", "group", "layout", "rope", "quantisation"]
    encoded = b"pagetier namespace 1"
    for name in [*order, "lora", "salt"]:
        value = str(given_fields[name]).encode()
        encoded += struct.pack("<I", len(name)) + name.encode() + struct.pack("<I", len(value)) + value
    return sha256(encoded).digest()


def reference_keys(digest: bytes, tokens: Sequence[int], page: int, extras: Sequence[bytes] | None = None) -> bytes:
    key, keys = digest, b""
    for number in range(len(tokens) // page):
        packed = b"".join(token.to_bytes(4, "little") for token in tokens[number * page : (number + 1) * page])
        key = sha256(key + packed + (extras[number] if extras else b"")).digest()
        keys += key
    return keys


# ---- the formula


def test_fixed_vectors() -> None:
    """The reference computed these values once; if one changes, every stored page is lost."""
    full = Namespace(
        model="meta/llama-8b", revision="abc", dtype="bfloat16", page_tokens=2, group="window", layout="hm1",
        rope="yarn", quantisation="fp8", lora="ünï", salt="s3cret",
    )  # fmt: skip
    assert NS.digest.hex() == "8e49cab03a80f351f17893ed677102357ef17c6ad8c3b5a8acabe8bfe1e72d51"
    assert full.digest.hex() == "932d072d4d64fb7741ce68731549049d1e09692f0a22d611c20ffb4bfbfc7c3c"
    assert NS.keys(range(9)).data.hex() == (
        "242c93ff75c25c24c83bf5045ec471649f6d8f8e54fcb8cbfdf57c16d54e63fa"
        "588a1d1a3c1e2dd86993ee4d6113269c4299f6e465d22c5633327c5d6037b24e"
    )
    assert full.keys([2**32 - 1, 0, 7, 8], [b"image", b""]).data.hex() == (
        "bc80bbef8dd4f95466c687740528acf22dd08a7f5a3cc80a1578bceeb9504a60"
        "b741d29d1ea4495919c601415f9fe15c4722db1884856290b26ed73ca4d1ea25"
    )
    assert NS.keys_of([b"block"]).data.hex() == "e6596cf050f3efc69bd3b31d464bdc0d1fad662e2a3854ffcd302e6d0caa00a1"


texts = st.text(st.characters(codec="utf-8"), max_size=8)


@given(
    st.fixed_dictionaries(
        {"model": texts.filter(bool), "dtype": texts.filter(bool), "page_tokens": st.integers(1, 2**40)},
        optional=dict.fromkeys(("revision", "group", "layout", "rope", "quantisation", "lora", "salt"), texts),
    )
)
def test_namespace_digest_is_the_reference(fields: dict[str, Any]) -> None:
    assert Namespace(**fields).digest == reference_digest(**fields)


@given(tokens_lists, page_sizes, st.binary(max_size=5))
def test_keys_are_the_reference(tokens: list[int], page: int, extra: bytes) -> None:
    ns = Namespace(model="m", dtype="d", page_tokens=page)
    expected = reference_keys(ns.digest, tokens, page, [extra] * (len(tokens) // page))
    assert ns.keys(tokens, extra).data == expected
    assert ns.keys(np.array(tokens, np.uint32), extra=extra).data == expected


@given(tokens_lists, page_sizes, st.data())
def test_extra_for_each_page(tokens: list[int], page: int, data: st.DataObject) -> None:
    pages = len(tokens) // page
    extras = data.draw(st.lists(st.binary(max_size=5), min_size=pages, max_size=pages))
    ns = Namespace(model="m", dtype="d", page_tokens=page)
    assert ns.keys(tokens, extras).data == reference_keys(ns.digest, tokens, page, extras)


@given(tokens_lists, page_sizes, st.data())
def test_growing_equals_hashing_at_once(tokens: list[int], page: int, data: st.DataObject) -> None:
    ns = Namespace(model="m", dtype="d", page_tokens=page)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens) // page), max_size=3)))
    keys = ns.keys([], after=None)
    for start, stop in pairwise([0, *cuts, None]):
        part = tokens[(start or 0) * page : None if stop is None else stop * page]
        keys = ns.keys(part, b"x", after=keys)
    assert keys == ns.keys(tokens, b"x")


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
def test_keys_of_digests(digests: list[bytes]) -> None:
    keys = NS.keys_of(digests)
    assert list(keys) == [sha256(NS.digest + digest).digest() for digest in digests]


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda raw: np.frombuffer(raw, np.uint8)])
def test_keys_of_one_buffer(make: Any) -> None:
    raw = bytes(range(96))
    assert NS.keys_of(make(raw)) == NS.keys_of([raw[:32], raw[32:64], raw[64:]])
    assert len(NS.keys_of(make(b""))) == 0


def test_namespaces_never_share_a_key() -> None:
    fields = {"model": "a", "dtype": "a", "revision": "a", "group": "a", "layout": "a", "rope": "a"}
    fields |= {"quantisation": "a", "lora": "a", "salt": "a"}
    base = Namespace(page_tokens=4, **fields)
    others = [msgspec.structs.replace(base, **{field: "b"}) for field in fields]
    others.append(msgspec.structs.replace(base, page_tokens=1))
    assert len({ns.keys(range(4))[0] for ns in [base, *others]}) == len(fields) + 2


# ---- invalid arguments


@pytest.mark.parametrize("extra", ["x", 3, None, bytearray(b"x"), [b"a", "b"], [b"a", None]], ids=repr)
def test_extra_that_is_not_bytes(extra: Any) -> None:
    with pytest.raises(TypeError, match="extra"):
        NS.keys(range(8), extra)


@pytest.mark.parametrize("items", [0, 1, 3])
def test_extra_of_another_length(items: int) -> None:
    with pytest.raises(ValueError, match=f"{items} items for 2 full pages"):
        NS.keys(range(9), [b"x"] * items)


@pytest.mark.parametrize(
    "digests", ["x", 3, [1], ["x"], [b"x", None], np.zeros(8, np.int32), array("i", [1])], ids=repr
)
def test_digests_that_are_not_bytes(digests: Any) -> None:
    with pytest.raises(TypeError, match="digest"):
        NS.keys_of(digests)


def test_digests_of_no_length() -> None:
    with pytest.raises(ValueError, match="digest 1 is empty"):
        NS.keys_of([b"x", b""])
    with pytest.raises(ValueError, match="33 is not a multiple"):
        NS.keys_of(bytes(33))


def test_continuing_in_another_namespace() -> None:
    other = msgspec.structs.replace(NS, salt="other")
    with pytest.raises(ValueError, match="cannot be continued"):
        NS.keys(range(4), after=other.keys(range(4)))


# ---- Keys


def test_a_slice_knows_the_page_before_it() -> None:
    keys = NS.keys(range(NS.page_tokens * 4))
    assert keys.prompts == (Prompt(0, b"", 0),)
    assert keys[1:].prompts == (Prompt(0, keys[0], 1),) and keys[1:][2:].prompts == (Prompt(0, keys[2], 3),)
    joined = Keys(NS, keys.data, (Prompt(0, b"x"), Prompt(2, b"y", 7)))
    assert joined[1:].prompts == (Prompt(0, keys[0]), Prompt(1, b"y", 7)) and joined[2:].prompts == (
        Prompt(0, b"y", 7),
    )
    assert joined[3:].prompts == (Prompt(0, keys[2], 8),)
    assert joined == keys and hash(joined) == hash(keys)
    assert Keys(NS, keys.data, ())[1:].prompts == ()


def test_keys_are_a_sequence_of_bytes() -> None:
    keys = NS.keys(range(12))
    assert len(keys) == 3
    assert b"".join(keys) == keys.data
    assert keys[0] == keys.data[:KEY_BYTES]
    assert keys[-1] == keys.data[-KEY_BYTES:]
    assert keys[1:] == Keys(NS, keys.data[KEY_BYTES:])
    assert keys[:-1] == NS.keys(range(8))
    assert keys[5:] == keys[2:1] == NS.keys([])
    assert keys[0] in keys
    with pytest.raises(IndexError):
        keys[3]
    with pytest.raises(ValueError, match="step 1"):
        keys[::2]


def test_keys_compare_by_namespace_and_data() -> None:
    keys, again = NS.keys(range(8)), NS.keys(np.arange(8))
    assert keys == again
    assert hash(keys) == hash(again)
    assert keys != keys[:1]
    assert keys != Keys(msgspec.structs.replace(NS, lora="x"), keys.data)


def test_keys_do_not_change() -> None:
    keys: Any = NS.keys(range(8))
    for change in ("data", "namespace", "anything"):
        with pytest.raises(AttributeError):
            setattr(keys, change, b"")


def test_keys_pickle_without_cached_values() -> None:
    keys = NS.keys(range(400))
    NS.name  # noqa: B018 - cached values must not be pickled
    message = pickle.dumps(keys)
    assert pickle.loads(message) == keys
    assert len(message) < len(keys.data) + 400
    assert NS.digest not in message


def test_keys_of_wrong_length() -> None:
    with pytest.raises(ValueError, match="33 is not a multiple"):
        Keys(NS, bytes(33))


@pytest.mark.parametrize("data", ["x" * 32, bytearray(32), None, [bytes(KEY_BYTES)]], ids=repr)
def test_keys_that_are_not_bytes(data: Any) -> None:
    with pytest.raises(TypeError, match="must be bytes"):
        Keys(NS, data)


def test_keys_of_no_namespace() -> None:
    nothing: Any = "ns"
    with pytest.raises(TypeError, match="Namespace"):
        Keys(nothing, bytes(KEY_BYTES))


def test_reprs_are_status_lines() -> None:
    assert repr(NS.keys(range(9))) == f"<Keys 2 pages of 4 tokens, llama-8b {NS.digest.hex()[:8]}>"
    assert repr(NS.keys(range(4))).startswith("<Keys 1 page of")
    salted = msgspec.structs.replace(NS, salt="tenant-secret")
    assert repr(salted) == f"<Namespace {salted.name}: bfloat16, 4 tokens a page, group full>"


def test_names_fit_a_table() -> None:
    assert Namespace(model="/models/a\nb/", dtype="d", page_tokens=1).name.startswith("a?b ")
    assert len(Namespace(model="x" * 500, dtype="d", page_tokens=1).name) == 49


def test_a_title_is_shown_and_separates_nothing() -> None:
    titles = {"org/model": "org/model", "/srv/org/model/": "model", "./model": "model", f"{'o' * 40}/model": "model"}
    for title, shown in titles.items():
        titled = msgspec.structs.replace(NS, title=title)
        assert titled.name == f"{shown} {NS.digest.hex()[:8]}"
        assert titled.digest == NS.digest


# ---- Namespace


@pytest.mark.parametrize(
    "wrong",
    [{"model": 3}, {"model": None}, {"salt": b"x"}, {"dtype": np.float32}]
    + [{"page_tokens": tokens} for tokens in ("16", 16.0, True, None)],
    ids=repr,
)
def test_namespace_fields_of_another_type(wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"model": "m", "dtype": "d", "page_tokens": 4} | wrong
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} of a namespace"):
        Namespace(**fields)


@pytest.mark.parametrize(
    "wrong",
    [{"model": ""}, {"dtype": ""}, {"page_tokens": 0}, {"page_tokens": -16}, {"lora": "\udc80"}],
    ids=repr,
)
def test_invalid_namespace_values_are_rejected(wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"model": "m", "dtype": "d", "page_tokens": 4} | wrong
    with pytest.raises(ValueError):
        Namespace(**fields)


def test_a_derived_namespace_has_its_own_digest() -> None:
    assert NS.digest
    derived = msgspec.structs.replace(NS, group="recurrent")
    assert derived.digest != NS.digest
    assert derived.name != NS.name


def test_namespaces_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(NS)) == NS
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(NS), type=Namespace) == NS
    assert hash(pickle.loads(pickle.dumps(NS))) == hash(NS)
