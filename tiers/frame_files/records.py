"""The record of a page in LMDB: a header with the serial of its write and its slots, and a checksum of the record.

An extent names slots: the number of the first one over all files of the environment, and how many follow each other.
"""

from __future__ import annotations

from typing import Final

import xxhash

from pagetier.tiers.disk import file_format
from pagetier.tiers.disk.file_format import Header, RecordError

CHECK_BYTES: Final = 8
_MARKS: Final = (1 << 32) - 1
_FORMATS: Final = (file_format.FORMAT, file_format.COMPRESSED_FORMAT)


def pack_record(key: bytes, header: Header) -> bytes:
    """Encodes a record."""
    body = file_format.pack_header(header)
    return body + check_of(key, body)


def unpack_record(key: bytes, value: bytes | memoryview) -> Header:
    """Decodes a record. Raises RecordError if it is not what was written under this key."""
    if check_of(key, value[:-CHECK_BYTES]) != value[-CHECK_BYTES:]:
        raise RecordError("the checksum of a record does not match")
    return file_format.unpack_header(value[:-CHECK_BYTES], _FORMATS)


def check_of(key: bytes, body: bytes | memoryview) -> bytes:
    """Returns the checksum of a record, which follows its body."""
    return xxhash.xxh3_64_digest(key + body)


def mark_of(serial: int) -> int:
    """Returns the mark that a write gives its slots, which is not 0; pt_mark() of the core is the same."""
    return serial % _MARKS or _MARKS
