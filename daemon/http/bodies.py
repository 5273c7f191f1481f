"""The bodies of requests and responses. The OpenAPI description follows from them."""

from __future__ import annotations

from enum import Enum
from http import HTTPStatus
from typing import Annotated, Final, TypeVar

import msgspec

from pagetier.daemon.http.http_connection import HttpError
from pagetier.daemon.stats.page_lookup import WHOLE_KEYS, keys_of_tokens
from pagetier.shm._core import KEY_BYTES, HintKind, NamespaceRecord, keys_of_hashes
from pagetier.shm.protocol import HINT_KEYS

MOST_PAGES: Final = HINT_KEYS
_DIGITS: Final = 2 * KEY_BYTES
# The length is limited, too, because "$" also matches before a newline at the end.
Hex = Annotated[str, msgspec.Meta(pattern=f"^[0-9a-fA-F]{{{_DIGITS}}}$", max_length=_DIGITS)]
Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=600)]
_B = TypeVar("_B", bound="PagesBody")


class HintName(Enum):
    """The names of hints, those of HintKind in lower case."""

    OVER = "over"
    WITHIN_20 = "within_20"
    WITHIN_60 = "within_60"
    WITHIN_300 = "within_300"
    LATER = "later"
    KEEP = "keep"
    UNKEEP = "unkeep"

    @property
    def kind(self) -> HintKind:
        """The hint as the daemon knows it."""
        return HintKind[self.name]


class PagesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pages of a prompt, from its beginning on, by one of keys, hashes and tokens.

    Where a request may be about all pages of a namespace, it names none.

    Attributes:
        namespace: The label, the model, or at least 8 digits of the digest of a namespace.
        keys: Keys of pages, in hexadecimal.
        hashes: SHA-256 hashes by which an engine names its blocks, in hexadecimal, one for each page. vLLM's connector
            uses them.
        tokens: Token IDs, where the namespace's keys are pagetier's own chain over tokens.
    """

    namespace: str
    keys: list[Hex] | None = None
    hashes: list[Hex] | None = None
    tokens: list[Token] | None = None

    @property
    def names_pages(self) -> bool:
        """Whether it names single pages."""
        return any(pages is not None for pages in (self.keys, self.hashes, self.tokens))

    def keys_in(self, space: NamespaceRecord) -> bytes:
        """Returns the keys of the pages. Raises HttpError unless there is exactly one list of pages, with one page."""
        if sum(pages is not None for pages in (self.keys, self.hashes, self.tokens)) != 1:
            raise HttpError(HTTPStatus.BAD_REQUEST, "give the pages by one of keys, hashes and tokens")
        pages = len(self.keys or self.hashes or self.tokens or ()) // (space.page_tokens if self.tokens else 1)
        if pages > MOST_PAGES:
            why = f"a request names at most {MOST_PAGES} pages, not {pages}: ask for the first ones"
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
        keys = self._keys_in(space)
        if not keys:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"there is no full page of {space.page_tokens} tokens")
        return keys

    def _keys_in(self, space: NamespaceRecord) -> bytes:
        if self.tokens is not None:
            return keys_of_tokens(space, self.tokens)
        if self.hashes is not None:
            return keys_of_hashes([bytes.fromhex(each) for each in self.hashes], space.digest)
        return bytes.fromhex("".join(self.keys or ()))


class LookupBody(PagesBody, frozen=True, kw_only=True):
    """What POST /v1/lookup takes."""


class PrefetchBody(PagesBody, frozen=True, kw_only=True):
    """What POST /v1/prefetch takes. Without pages: those of the namespace that are only on disk, as many as fit.

    Attributes:
        timeout: Seconds after which pages that are not read yet are not waited for.
    """

    timeout: Seconds = 60.0


class HintBody(PagesBody, frozen=True, kw_only=True):
    """What POST /v1/hint takes. With keep and unkeep, without pages: all pages of the namespace.

    Attributes:
        hint: What is known of the pages' session: it is over, or returns within so many seconds, or later; keep: the
            pages are evicted last; unkeep: they need not be kept any more.
        ttl: Seconds for which the hint holds.
    """

    hint: HintName
    ttl: Annotated[float, msgspec.Meta(gt=0)] = 300.0


class PrefetchAccepted(msgspec.Struct, frozen=True):
    """The response to POST /v1/prefetch.

    Attributes:
        id: For GET /v1/prefetch/{id}.
        pages: Pages that were asked for.
    """

    id: str
    pages: int


class PrefetchState(Enum):
    """Whether pages are still being read."""

    READING = "reading"
    DONE = "done"


class PrefetchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a prefetch is, in pages.

    Attributes:
        state: reading or done.
        pages: Pages that were asked for.
        in_memory: Pages that can be matched now.
        pending: Pages that are being read; at the timeout also the rest of a namespace.
        absent: Pages that are in no tier, those of a prompt behind them, and those that could not be read.
        no_room: Pages for which there is no memory, or no share of it, or that are too many for a request.
        reason: Why pages are not in memory, as `pagetier pages prefetch` says it, "" if there is nothing to say.
    """

    state: PrefetchState
    pages: int
    in_memory: int
    pending: int = 0
    absent: int = 0
    no_room: int = 0
    reason: str = ""


class HintResult(msgspec.Struct, frozen=True):
    """The response to POST /v1/hint.

    Attributes:
        pages: Pages that were named.
        applied: Those to which the hint applies now.
        kept_bytes: All bytes that are kept in memory by request.
        only_on_disk: Those that are only on disk, which cannot be kept: prefetch them.
        note: Why the hint applies to no page, or why pages only on disk are not known, "" if there is nothing to say.
    """

    pages: int
    applied: int
    kept_bytes: int
    only_on_disk: int = 0
    note: str = ""


class Health(msgspec.Struct, frozen=True):
    """The response to GET /healthz.

    Attributes:
        phase: starting, serving or stopping; unknown if the status in memory is damaged. Engines can attach while it is
            serving.
    """

    phase: str


def read_body(body: bytes, kind: type[_B]) -> _B:
    """Returns the body of a request. Raises HttpError if it is something else."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is not valid: {error}{_choices(kind, error)}") from error


def _choices(kind: type[PagesBody], error: Exception) -> str:
    """Returns the valid values of the field that an error names, or what prints them; "" if neither is known."""
    if "`$.keys[" in str(error):
        return f": {WHOLE_KEYS}"
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, Enum) and str(error).endswith(f"`$.{field.name}`"):
            return f": one of {', '.join(each.value for each in field.type)}"
    return ""
