"""Reads a trace of prompts into the block numbers of each request."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.keys import Namespace
from pagetier.shm._core import KEY_BYTES

_ID_BYTES = 8
_GZIP_MAGIC = b"\x1f\x8b"


class TraceError(Exception):
    """The file is not a valid trace. The message has the line and the reason."""


class Line(msgspec.Struct, frozen=True):
    """One request of the Mooncake format.

    Attributes:
        input_length: Tokens of the prompt.
        hash_ids: An ID for each block, which stands for the block and all before it; the last block may be partial.
    """

    input_length: Annotated[int, msgspec.Meta(ge=0, le=2**40)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]


class Trace(msgspec.Struct, frozen=True, eq=False):
    """Requests in their order, full blocks only: request i has the blocks numbers[ends[i-1]:ends[i]].

    Attributes:
        block_tokens: Tokens of a block.
        ids: i64, the trace's ID of each distinct block, by the block's number.
        numbers: The block numbers of all requests.
        ends: i64, the end of each request in `numbers`.
        prompt_tokens: i64, the tokens of each request.
    """

    block_tokens: int
    ids: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.intp]
    ends: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def blocks(self, request: int) -> npt.NDArray[np.intp]:
        """Returns the block numbers of a request, from the beginning of the prompt."""
        return self.numbers[self.ends[request - 1] if request else 0 : self.ends[request]]

    def keys(self, namespace: Namespace) -> npt.NDArray[np.uint8]:
        """Returns the key of each distinct block by its number, 32 bytes a row."""
        packed = self.ids.astype("<i8").tobytes()
        digests = [packed[at : at + _ID_BYTES] for at in range(0, len(packed), _ID_BYTES)]
        return np.frombuffer(namespace.keys_of(digests).data, dtype=np.uint8).reshape(-1, KEY_BYTES)

    def __repr__(self) -> str:
        return f"<Trace {len(self)} requests, {len(self.ids)} blocks of {self.block_tokens} tokens>"


def read_trace(path: Path, block_tokens: int, first: int | None = None, page_blocks: int = 1) -> Trace:
    """Returns the requests of a trace: a file of JSON lines, which may be compressed with gzip.

    Args:
        path: The file.
        block_tokens: Tokens of a block in the file.
        first: The number of requests to read, from the first one on; None for all.
        page_blocks: Blocks in the file that form one block of the result. Its ID is that of the last of them.

    Raises:
        TraceError: The file is not a trace, has no request, or has blocks of another size.
        OSError: It cannot be read.
    """
    requests: list[list[int]] = []
    prompts: list[int] = []
    for location, line in _lines(path):
        if len(requests) == first:
            break
        blocks = _full_blocks(line, block_tokens, location)
        requests.append(blocks[page_blocks - 1 :: page_blocks])
        prompts.append(line.input_length)
    if not requests:
        raise TraceError(f"{path}: no request in it")
    flat = np.array([block for blocks in requests for block in blocks], dtype=np.int64)
    ids, numbers = np.unique(flat, return_inverse=True)
    ends = np.cumsum([len(blocks) for blocks in requests], dtype=np.int64)
    return Trace(block_tokens * page_blocks, ids, numbers, ends, np.array(prompts, dtype=np.int64))


def _lines(path: Path) -> Iterator[tuple[str, Line]]:
    decoder = msgspec.json.Decoder(Line)
    with _opened(path) as file:
        try:
            for number, text in enumerate(file, start=1):
                location = f"{path}, line {number}"
                if not text.isspace():
                    yield location, _decode(decoder, text, location)
        except (EOFError, gzip.BadGzipFile) as error:
            raise TraceError(f"{path}: {error}") from error


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]  # a GzipFile is one


def _decode(decoder: msgspec.json.Decoder[Line], text: bytes, location: str) -> Line:
    try:
        return decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{location}: not a request of a trace: {error}") from error


def _full_blocks(line: Line, block_tokens: int, location: str) -> list[int]:
    full, partial = divmod(line.input_length, block_tokens)
    if len(line.hash_ids) not in (full, full + bool(partial)):
        raise TraceError(
            f"{location}: {line.input_length} tokens in {len(line.hash_ids)} blocks, not in blocks of {block_tokens}"
        )
    return line.hash_ids[:full]
