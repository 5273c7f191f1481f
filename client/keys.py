"""Names of pages: 32-byte keys chained over the tokens of a prompt.

    key of page 0 = sha256(namespace digest ‖ tokens of page 0 ‖ extra of page 0)
    key of page i = sha256(key of page i-1  ‖ tokens of page i ‖ extra of page i)

Tokens are little-endian u32, exactly `page_tokens` of them a page; what is left over at the end
of a prompt is no page and has no key. Since the number of tokens in a page is part of the
namespace, no two different inputs feed the same bytes into one step of the chain.

The namespace digest is

    sha256(b"pagetier namespace 1" ‖ for each field in order of declaration:
           u32 length of its name ‖ name ‖ u32 length of its value ‖ value)

with lengths little-endian, texts in UTF-8 as given (not normalised) and `page_tokens` in decimal
digits. A field that is added, renamed or moved needs a new number in the tag.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, overload

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.hash_inputs import (
    HASH_BYTES,
    TOKEN_BYTES,
    Tokens,
    all_bytes,
    digests_of,
    is_sequence,
    mixed_into,
    token_ids,
)
from pagetier.shm.cached import CachedProperty

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from 3.12 on

KEY_BYTES: Final = HASH_BYTES
"""Bytes of a key: one SHA-256 digest."""

_TAG: Final = b"pagetier namespace 1"
_LABEL_CHARACTERS: Final = 40


class Keys(msgspec.Struct, frozen=True):
    """The keys of consecutive pages of one namespace; immutable, hashable, picklable.

    `data` holds them end to end, 32 bytes each. Indexing gives one key as bytes, a slice of
    step 1 gives Keys.
    """

    namespace: "Namespace"
    data: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.namespace, Namespace):
            raise TypeError(f"namespace must be a Namespace, not {_kind(self.namespace)}")
        if not isinstance(self.data, bytes):
            raise TypeError(f"keys must be bytes, not {_kind(self.data)}")
        if len(self.data) % KEY_BYTES:
            raise ValueError(f"keys have {KEY_BYTES} bytes each: {len(self.data)} is no multiple of that")

    def __len__(self) -> int:
        return len(self.data) // KEY_BYTES

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return (data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES))

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> "Keys": ...
    def __getitem__(self, at: int | slice) -> "bytes | Keys":
        if isinstance(at, slice):
            return self._slice(at)
        start = range(0, len(self.data), KEY_BYTES)[at]
        return self.data[start : start + KEY_BYTES]

    def _slice(self, at: slice) -> "Keys":
        start, stop, step = at.indices(len(self))
        if step != 1:
            raise ValueError(f"keys are a chain: a slice of them has step 1, not {step}")
        return Keys(self.namespace, self.data[start * KEY_BYTES : stop * KEY_BYTES])

    def __repr__(self) -> str:
        pages = "1 page" if len(self) == 1 else f"{len(self)} pages"
        return f"<Keys {pages} of {self.namespace.page_tokens} tokens, {self.namespace.name}>"


class Namespace(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything besides the tokens that determines the bytes of a page.

    Pages of two namespaces never match. Texts are compared as they are: an engine has to spell a setting
    the same way each time.

    Attributes:
        model, revision: which weights.
        dtype: of the stored state, such as "bfloat16".
        page_tokens: tokens in a page, 1 or more.
        group: which of the model's groups of layers: "full", "window", "recurrent" and so on.
        layout: name and version of the order of the bytes in a page.
        rope, quantisation: settings that change the state.
        lora: the adapter.
        salt: keeps tenants apart; shown by no repr and in no statistics.

    Raises:
        TypeError: a field of another type.
        ValueError: an empty model or dtype, a text that has no UTF-8 (a lone surrogate), page_tokens
            below 1.
    """

    model: str
    revision: str = ""
    dtype: str
    page_tokens: int
    group: str = "full"
    layout: str = ""
    rope: str = ""
    quantisation: str = ""
    lora: str = ""
    salt: str = ""

    def __post_init__(self) -> None:
        for field, value in self._fields():
            _check_field(field, value)

    def _fields(self) -> Iterator[tuple[str, object]]:
        return ((field, getattr(self, field)) for field in self.__struct_fields__)

    @CachedProperty
    def digest(self) -> bytes:
        """32 bytes that stand for all fields; where every chain of keys begins."""
        return sha256(_TAG + b"".join(_sized(field) + _sized(str(value)) for field, value in self._fields())).digest()

    @CachedProperty
    def name(self) -> str:
        """A short label for people: the model without its folder, and 8 hex digits of the digest."""
        model = self.model.rstrip("/").rpartition("/")[2][:_LABEL_CHARACTERS]
        shown = "".join(letter if letter.isprintable() else "?" for letter in model)
        return f"{shown} {self.digest.hex()[:8]}"

    def keys(self, tokens: Tokens, extra: bytes | Sequence[bytes] = b"", after: Keys | None = None) -> Keys:
        """The keys of all full pages of `tokens`.

        An int32 or uint32 array (or tensor, or buffer) in one piece is hashed where it lies; its tokens
        must not change meanwhile.

        Args:
            tokens: ids from 0 to 2**32-1: a sequence, an array, a CPU tensor or a buffer of integers.
            extra: what determines the pages besides the tokens (digests of images, say): bytes for every
                page alike, or a sequence with one bytes for each full page of `tokens`.
            after: the keys of the beginning of the same prompt. `tokens` are then those behind its
                len(after) * page_tokens tokens; only they are hashed, and the result holds all keys.

        Raises:
            TypeError: tokens that are no row of integers (floats, texts, bools, bytes, two dimensions),
                an `extra` that is not bytes.
            ValueError: a token out of range (the message names the first), an `extra` with another number
                of items, an `after` of another namespace.
        """
        ids = token_ids(tokens)
        extras = _extras(extra, len(ids) // self.page_tokens)
        begun = self._begun(after)
        chained = _chain(begun[-KEY_BYTES:] or self.digest, ids, self.page_tokens, extras)
        return Keys(self, begun + chained)

    def keys_of(self, digests: "Sequence[bytes] | Buffer | npt.NDArray[np.uint8]") -> Keys:
        """The keys of pages that an engine has hashed itself: sha256(namespace digest ‖ digest) of each.

        The caller guarantees that a digest stands for its page and all pages before it.

        Args:
            digests: a sequence of bytes, each of any length but 0, or one buffer with 32 bytes a page.

        Raises:
            TypeError: anything else.
            ValueError: an empty digest, a buffer whose length is no multiple of 32.
        """
        begun = sha256(self.digest)
        return Keys(self, b"".join(_continued(begun, digest) for digest in digests_of(digests)))

    def keys_of_hashes(self, hashes: "Sequence[bytes] | Buffer | npt.NDArray[np.uint8]") -> Keys:
        """The keys of pages whose chained SHA-256 an engine has: hash XOR namespace digest. For hot paths.

        The caller guarantees that a hash is a SHA-256 over its page and all pages before it, and that the namespace
        says how it was made, its seed included. Digests of anything weaker belong to keys_of(), which hashes them:
        bits that are hardly mixed collide here across namespaces, and fill few buckets of the index.

        Keys of one namespace are as different as the hashes. In two namespaces pages share a key only where
        hash(a) XOR hash(b) is the XOR of the namespaces' digests, and finding such a pair of inputs is a search of
        about 2**128 steps, as for any collision of SHA-256. Who can choose namespaces, too, as many as he
        likes, searches four lists instead of two, in about 2**85 steps and as much memory (Wagner's generalised
        birthday): still out of reach, but namespaces are better set by who runs the engine.

        Args:
            hashes: a sequence of bytes, or one buffer, 32 bytes a page.

        Raises:
            TypeError: anything else.
            ValueError: a hash of another length.
        """
        return Keys(self, mixed_into(hashes, self.digest))

    def _begun(self, after: Keys | None) -> bytes:
        if after is None:
            return b""
        if after.namespace != self:
            raise ValueError(f"keys of {after.namespace.name} can not be continued in {self.name}")
        return after.data

    def __repr__(self) -> str:
        return f"<Namespace {self.name}: {self.dtype}, {self.page_tokens} tokens a page, group {self.group}>"


def _kind(value: object) -> str:
    return type(value).__name__


def _check_field(field: str, value: object) -> None:
    wanted = int if field == "page_tokens" else str
    if type(value) is not wanted:
        raise TypeError(f"{field} of a namespace must be {wanted.__name__}, not {_kind(value)}")
    if field in ("model", "dtype") and not value:
        raise ValueError(f"{field} of a namespace must not be empty")
    if isinstance(value, int) and value < 1:
        raise ValueError(f"page_tokens must be 1 or more, not {value}")
    str(value).encode()


def _sized(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(4, "little") + encoded


def _chain(previous: bytes, ids: npt.NDArray[np.uint32], page_tokens: int, extras: Iterable[bytes]) -> bytes:
    pages = ids.view(np.uint8).data
    page_bytes = page_tokens * TOKEN_BYTES
    keys = []
    # The hot path: what stands in this loop is paid once a page, beside some 4 µs of hashing for 256 tokens.
    for start, extra in zip(range(0, len(pages) - page_bytes + 1, page_bytes), extras, strict=False):
        state = sha256(previous)
        state.update(pages[start : start + page_bytes])
        if extra:
            state.update(extra)
        previous = state.digest()
        keys.append(previous)
    return b"".join(keys)


def _extras(extra: bytes | Sequence[bytes], pages: int) -> Iterable[bytes]:
    if isinstance(extra, bytes):
        return repeat(extra)
    if not is_sequence(extra):
        raise TypeError(f"extra must be bytes or a sequence of bytes, not {_kind(extra)}")
    if len(extra) != pages:
        raise ValueError(f"extra has {len(extra)} items for {pages} full pages of tokens")
    return all_bytes("extra", extra)


def _continued(begun: Any, digest: bytes) -> bytes:
    state = begun.copy()
    state.update(digest)
    return bytes(state.digest())
