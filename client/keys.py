"""Keys: the 32-byte names of pages, chained over the tokens of a prompt.

    key of page 0 = sha256(namespace digest ‖ tokens of page 0 ‖ extra of page 0)
    key of page i = sha256(key of page i-1  ‖ tokens of page i ‖ extra of page i)

Tokens are little-endian u32, exactly `page_tokens` for each page. Tokens after the last full page have no key. Since
the number of tokens in a page is part of the namespace, different inputs never feed the same bytes into one step of the
chain.

The namespace digest is

    sha256(b"pagetier namespace 1" ‖ for each field in order of declaration:
           u32 length of its name ‖ name ‖ u32 length of its value ‖ value)

with little-endian lengths, text in UTF-8 as given (not normalised) and `page_tokens` in decimal digits. The title is
not hashed. A hashed field that is added, renamed or moved requires a new number in the tag.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, overload

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import force_setattr

from pagetier.client.arguments import integer_of
from pagetier.client.hashing import Tokens, chained, digests_of, extras_of, hashed_after, mixed_into, token_ids
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.cached import CachedProperty
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import Prompt, Space

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from 3.12 on

_WHOLE: Final = Prompt(0, b"", 0)
_TAG: Final = b"pagetier namespace 1"
_LABEL_CHARACTERS: Final = 40
_NEEDED: Final = ("model", "dtype", "page_tokens")
_EXAMPLE: Final = 'Namespace(model="llama", dtype="bfloat16", page_tokens=256)'


class Keys(msgspec.Struct, frozen=True):
    """The keys of consecutive pages of one namespace; immutable, hashable and picklable.

    len() is the number of pages. An index gives one key as bytes, a slice of step 1 gives Keys.

    Attributes:
        namespace: The namespace of the pages.
        data: The keys, 32 bytes each, one after the other.
        prompts: The prompts among the pages, ascending from page 0. Empty if each page is useful without those before
            it. A slice knows the page before it, and the number of its first page in the prompt if that is known. It is
            a hint for eviction and no part of equality.

    Raises:
        TypeError: `namespace` is not a Namespace, or `data` is not bytes.
        ValueError: The length of `data` is not a multiple of 32.
    """

    namespace: "Namespace"
    data: bytes
    prompts: tuple[Prompt, ...] = (_WHOLE,)

    def __post_init__(self) -> None:
        if not isinstance(self.namespace, Namespace):
            raise TypeError(f"namespace must be a Namespace, not {_type_name(self.namespace)}")
        if not isinstance(self.data, bytes):
            raise TypeError(f"keys must be bytes, not {_type_name(self.data)}")
        if len(self.data) % KEY_BYTES:
            raise ValueError(f"keys have {KEY_BYTES} bytes each: {len(self.data)} is not a multiple of that")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and (self.namespace, self.data) == (other.namespace, other.data)

    def __hash__(self) -> int:
        return hash((self.namespace, self.data))

    def __len__(self) -> int:
        return len(self.data) // KEY_BYTES  # each request asks several times

    def __iter__(self) -> Iterator[bytes]:
        return iter(PAGE_KEYS.split(self.data))

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> "Keys": ...
    def __getitem__(self, at: int | slice) -> "bytes | Keys":
        if isinstance(at, slice):
            return self._slice(at)
        page = range(len(self))[at]
        return PAGE_KEYS.part(self.data, page, page + 1)

    def _slice(self, at: slice) -> "Keys":
        start, stop, step = at.indices(len(self))
        if step != 1:
            raise ValueError(f"a slice of keys must have step 1, not {step}: keys form a chain")
        return Keys(self.namespace, PAGE_KEYS.part(self.data, start, stop), self._prompts_of(start, stop))

    def _prompts_of(self, start: int, stop: int) -> tuple[Prompt, ...]:
        if not self.prompts or (not start and len(self.prompts) == 1):
            return self.prompts  # as in most matches
        prompts = [Prompt(*prompt) for prompt in self.prompts]
        later = (prompt._replace(begin=prompt.begin - start) for prompt in prompts if start < prompt.begin < stop)
        return (self._prompt_at(start, prompts), *later)

    def _prompt_at(self, start: int, prompts: Sequence[Prompt]) -> Prompt:
        """Returns the prompt of the pages from `start` on."""
        last = next((prompt for prompt in reversed(prompts) if prompt.begin <= start), _WHOLE)
        if last.begin == start:
            return last._replace(begin=0)
        depth = last.depth + start - last.begin if last.depth >= 0 else -1
        return Prompt(0, self[start - 1], depth)

    def __repr__(self) -> str:
        pages = "1 page" if len(self) == 1 else f"{len(self)} pages"
        return f"<Keys {pages} of {self.namespace.page_tokens} tokens, {self.namespace.name}>"


class _NamespaceType(msgspec.StructMeta):
    """Completes the errors about missing, unknown and positional arguments by what to write instead."""

    def __call__(self, *args: object, **fields: object) -> Any:
        wrong = "Namespace takes arguments by name only" if args else _wrong_fields(self, fields)
        if wrong:
            raise TypeError(f"{wrong}: write {_EXAMPLE}")
        return super().__call__(**fields)


class Namespace(msgspec.Struct, frozen=True, kw_only=True, dict=True, metaclass=_NamespaceType):
    """Everything except the tokens that determines the bytes of a page. Immutable.

    Pages of two namespaces never match. Texts are compared literally: an engine must spell a setting the same way each
    time.

    Attributes:
        model: The model.
        revision: The revision of its weights.
        dtype: The type of the stored state, such as "bfloat16".
        page_tokens: The number of tokens in a page, 1 or more.
        group: The layer group: "full", "window", "recurrent" and so on.
        layout: The name and version of the order of bytes in a page, see PageLayout.layout.
        rope: RoPE settings that change the state.
        quantisation: Quantisation settings that change the state.
        lora: The adapter.
        salt: A text that separates tenants. It is not shown by repr() or in statistics.
        title: What statistics show in place of the model. It separates nothing: it is no part of the digest.

    Raises:
        TypeError: A field has another type.
        ValueError: The model or dtype is empty, a text cannot be encoded in UTF-8 (a lone surrogate), or page_tokens is
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
    title: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "page_tokens", integer_of("page_tokens of a namespace", self.page_tokens))
        for field, value in self._fields():
            _check_field(field, value)

    def _fields(self) -> Iterator[tuple[str, object]]:
        return ((field, getattr(self, field)) for field in self.__struct_fields__)

    @CachedProperty
    def digest(self) -> bytes:
        """32 bytes that stand for all fields but the title; every chain of keys begins with them."""
        hashed = ((field, value) for field, value in self._fields() if field != "title")
        return sha256(_TAG + b"".join(_sized(field) + _sized(str(value)) for field, value in hashed)).digest()

    @CachedProperty
    def name(self) -> str:
        """A short label for people: the title, else the model without its folder, and 8 hex digits of the digest."""
        # Of a title that is a path, or too long for a label, the last part says most.
        whole, last = self.title, (self.title or self.model).rstrip("/").rpartition("/")[2]
        is_short = whole and not whole.startswith(("/", ".", "~")) and len(whole) <= _LABEL_CHARACTERS
        model = whole if is_short else last[:_LABEL_CHARACTERS]
        shown = "".join(letter if letter.isprintable() else "?" for letter in model)
        return f"{shown} {self.digest.hex()[:8]}"

    def keys(self, tokens: Tokens, extra: bytes | Sequence[bytes] = b"", after: Keys | None = None) -> Keys:
        """Returns the keys of all full pages of `tokens`.

        An int32 or uint32 array, tensor or buffer that is contiguous is hashed in place: its content must not change
        during the call.

        Raises TypeError if `tokens` is not one-dimensional or not of integers (floats, texts, bools, bytes), or `extra`
        is not bytes. Raises ValueError if a token is out of range (the message names the first one), `extra` has
        another number of items, or `after` belongs to another namespace.

        Args:
            tokens: IDs from 0 to 2**32-1: a sequence, an array, a CPU tensor or a buffer of integers.
            extra: Whatever determines the pages besides the tokens, for example digests of images: bytes that apply to
                every page, or a sequence with one bytes object for each full page of `tokens`.
            after: The keys of the beginning of the same prompt. `tokens` then continue after its len(after) *
                page_tokens tokens; only they are hashed, and the result has all keys.
        """
        ids = token_ids(tokens)
        extras = extras_of(extra, len(ids) // self.page_tokens)
        previous = self._previous_keys(after)
        new = chained(after[-1] if after else self.digest, ids, self.page_tokens, extras)
        return Keys(self, previous + new, after.prompts) if after else Keys(self, previous + new)

    def keys_of(self, digests: "Sequence[bytes] | Buffer | npt.NDArray[np.uint8]") -> Keys:
        """Returns the keys of pages that an engine has hashed: sha256(namespace digest ‖ digest) for each page.

        The caller guarantees that a digest stands for its page and all pages before it. Raises TypeError if `digests`
        has another type, and ValueError if a digest is empty or the length of a buffer is not a multiple of 32.

        Args:
            digests: A sequence of bytes objects, each of any length but 0, or one buffer with 32 bytes for each page.
        """
        previous = sha256(self.digest)
        return Keys(self, b"".join(hashed_after(previous, digest) for digest in digests_of(digests)))

    def keys_of_hashes(self, hashes: "Sequence[bytes] | Buffer | npt.NDArray[np.uint8]") -> Keys:
        """Returns the keys of pages from the engine's own chained SHA-256: hash XOR namespace digest. For hot paths.

        The caller guarantees that a hash is a SHA-256 over its page and all pages before it, and that the namespace
        identifies how it was made, including its seed. Weaker digests must go through keys_of(), which hashes them:
        poorly mixed bits would collide across namespaces here, and would fill few buckets of the index.

        Within a namespace the keys differ as the hashes do. Pages of two namespaces share a key only if hash(a) XOR
        hash(b) equals the XOR of the namespaces' digests. Finding such a pair of inputs takes about 2**128 steps, as
        for any collision of SHA-256. An attacker who can also choose any number of namespaces searches four lists
        instead of two, in about 2**85 steps and as much memory (Wagner's generalised birthday). That is still
        infeasible, but the operator of the engine should set the namespaces.

        Raises TypeError if `hashes` has another type, and ValueError if a hash has another length.

        Args:
            hashes: A sequence of bytes objects or one buffer, 32 bytes for each page.
        """
        return Keys(self, mixed_into(hashes, self.digest))

    def _previous_keys(self, after: Keys | None) -> bytes:
        if after is None:
            return b""
        if after.namespace != self:
            raise ValueError(f"keys of {after.namespace.name} cannot be continued in {self.name}")
        return after.data

    def __repr__(self) -> str:
        return f"<Namespace {self.name}: {self.dtype}, {self.page_tokens} tokens a page, group {self.group}>"


def _type_name(value: object) -> str:
    return type(value).__name__


def _wrong_fields(kind: _NamespaceType, given: Mapping[str, object]) -> str:
    """Returns which arguments of a namespace are missing or unknown; "" if it has all that it needs."""
    if missing := [name for name in _NEEDED if name not in given]:
        return f"Namespace needs {', '.join(missing)}"
    unknown = [name for name in given if name not in kind.__struct_fields__]
    return f"Namespace has no {', '.join(unknown)}" if unknown else ""


def _check_field(field: str, value: object) -> None:
    wanted = int if field == "page_tokens" else str
    if type(value) is not wanted:
        raise TypeError(f"{field} of a namespace must be {wanted.__name__}, not {_type_name(value)}")
    if field in ("model", "dtype") and not value:
        raise ValueError(f"{field} of a namespace must not be empty")
    if isinstance(value, int) and value < 1:
        raise ValueError(f"page_tokens must be 1 or more, not {value}")
    str(value).encode()


def _sized(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(4, "little") + encoded


def require_keys(value: object, call: str) -> None:
    """Raises TypeError if an argument of a call is not Keys."""
    if not isinstance(value, Keys):
        raise TypeError(
            f"{call} takes Keys, not {type(value).__name__}: make them with namespace.keys(token_ids), or use what"
            " register() returns, which takes token IDs"
        )


def space_of(keys: Keys) -> Space:
    """Returns the namespace of keys, as messages have it."""
    return Space(keys.namespace.digest, keys.namespace.name, keys.namespace.page_tokens)
