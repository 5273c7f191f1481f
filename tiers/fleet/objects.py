"""The format of an object: its name, its header, and its bytes plain or encrypted; see docs/design/fleet.md."""

from __future__ import annotations

import hmac
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Space
from pagetier.tiers.base import PageName
from pagetier.tiers.page_checksum import page_checksum

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import AEADDecryptionContext, AEADEncryptionContext, Cipher, modes

MAGIC: Final = b"ptfleet\0"
VERSION: Final = 1
PLAIN, AES_256_GCM = 0, 1
_FIXED: Final = struct.Struct("<8sBBHIQ32s32s")
_CHECKED: Final = struct.Struct("<16s12s12s")
_COVERED: Final = _FIXED.size
HEADER_BYTES: Final = _FIXED.size + _CHECKED.size
KEY_FILE_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_PROOF_BYTES: Final = 12


def object_name(prefix: str, page: PageName) -> str:
    """Returns the name of a page's object. The namespace is in it for listing, life-cycle rules and deletion."""
    return f"{prefix}/{page.space[:8].hex()}/{page.key.hex()}"


def object_names(prefix: str, keys: bytes, spaces: Sequence[int], table: Sequence[Space]) -> list[str]:
    """Returns what object_name() returns for each of many pages, in a quarter of the time.

    Args:
        prefix: The first part of all names.
        keys: The keys of the pages, 32 bytes each.
        spaces: The namespace of each page, as an index into `table`.
        table: The namespaces.
    """
    folders = [f"{prefix}/{space.digest[:8].hex()}/" for space in table]
    digits, width = keys.hex(), 2 * KEY_BYTES
    return [folders[space] + digits[at : at + width] for space, at in zip(spaces, count(0, width), strict=False)]


def page_sizes(lengths: Sequence[int]) -> array[int]:
    """Returns the sizes of pages whose objects have these lengths, as an array of type "Q"."""
    return array("Q", [length - HEADER_BYTES if length > HEADER_BYTES else 0 for length in lengths])


class ObjectHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first HEADER_BYTES of an object.

    Attributes:
        check: The checksum, or the tag, which covers `covered`, too.
        proof: Shows a holder of the fleet key that the object was written with it, whatever happened to the page.
        covered: The bytes before `check`.
    """

    magic: bytes
    version: int
    codec: int
    key_id: int
    header_bytes: int
    size: int
    page: PageName
    check: bytes
    nonce: bytes
    proof: bytes
    covered: bytes


def unpack_header(data: bytes) -> ObjectHeader:
    """Decodes a header of any content."""
    magic, version, codec, key_id, header_bytes, size, key, space = _FIXED.unpack_from(data)
    check, nonce, proof = _CHECKED.unpack_from(data, _COVERED)
    return ObjectHeader(
        magic=magic,
        version=version,
        codec=codec,
        key_id=key_id,
        header_bytes=header_bytes,
        size=size,
        page=PageName(space, key),
        check=check,
        nonce=nonce,
        proof=proof,
        covered=data[:_COVERED],
    )


def is_other(header: ObjectHeader, size: int, length: int) -> bool:
    """Returns whether an object that looks whole is of another version or size."""
    if header.header_bytes != HEADER_BYTES:
        return False
    return header.version != VERSION or (header.size != size and header.size + HEADER_BYTES == length)


def wrong_header(header: ObjectHeader, page: PageName, length: int) -> str:
    """Returns why an object of this length is not the one of a page, or ""."""
    if header.header_bytes != HEADER_BYTES:
        return "the object has another header"
    if header.size + HEADER_BYTES != length:
        return f"an object of {header.size} bytes has {length - HEADER_BYTES}"
    return "" if header.page == page else "it is the object of another page"


class PageCodec(Protocol):
    """How the bytes of pages are protected. Thread-safe."""

    codec: int
    key_id: int

    def pack(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> None:
        """Writes an object of HEADER_BYTES + `size` bytes to `out`."""

    def verify(self, header: ObjectHeader, frames: Sequence[memoryview]) -> bool:
        """Verifies bytes that were copied to the frames, and decrypts them there. Returns whether they are exact."""

    def proof(self, page: PageName) -> bytes:
        """Returns what the header of a page's object has as `proof`; b"" if this codec needs none."""


class PlainCodec:
    """Pages with a checksum."""

    codec = PLAIN
    key_id = 0

    def pack(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> None:
        """Copies the page. The checksum is that of the frames: whatever happens to `out` later is found."""
        at = HEADER_BYTES
        for part in _parts(frames, size):
            out[at : at + len(part)] = part
            at += len(part)
        out[:_COVERED] = _fixed(self, page, size)
        out[_COVERED:HEADER_BYTES] = _CHECKED.pack(page_checksum(page.key, size, frames), b"", b"")

    def verify(self, header: ObjectHeader, frames: Sequence[memoryview]) -> bool:
        """Compares the checksums."""
        return page_checksum(header.page.key, header.size, frames) == header.check

    def proof(self, page: PageName) -> bytes:
        """Returns b"": nothing keeps an object without a key from being of this fleet."""
        return b""


class EncryptedCodec:
    """Pages that are encrypted with keys derived from a fleet key: one for each page, and a random nonce.

    The tag covers the header, so that no object passes for another page. Raises ImportError without `cryptography`.
    """

    codec = AES_256_GCM

    def __init__(self, fleet_key: bytes) -> None:
        from cryptography.hazmat.primitives import ciphers

        self._ciphers = ciphers
        self._fleet_key = fleet_key
        self.key_id = int.from_bytes(hmac.digest(fleet_key, b"pagetier key id", "sha256")[:2], "little")

    def pack(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> None:
        """Encrypts from the frames to `out`."""
        fixed, nonce = _fixed(self, page, size), os.urandom(_NONCE_BYTES)
        cipher: AEADEncryptionContext = self._cipher(page.key, nonce, None).encryptor()
        cipher.authenticate_additional_data(fixed)
        at = HEADER_BYTES
        for part in _parts(frames, size):
            cipher.update_into(part, out[at : at + len(part)])
            at += len(part)
        # The tag is known after the last byte, so the header is written last.
        cipher.finalize()
        out[:_COVERED] = fixed
        out[_COVERED:HEADER_BYTES] = _CHECKED.pack(cipher.tag, nonce, self.proof(page))

    def verify(self, header: ObjectHeader, frames: Sequence[memoryview]) -> bool:
        """Decrypts in place: what is verified and what stays are the same bytes, in memory that no other has."""
        from cryptography.exceptions import InvalidTag

        cipher: AEADDecryptionContext = self._cipher(header.page.key, header.nonce, header.check).decryptor()
        cipher.authenticate_additional_data(header.covered)
        for part in _parts(frames, header.size):
            cipher.update_into(part, part)
        try:
            cipher.finalize()
        except InvalidTag:
            return False
        return True

    def proof(self, page: PageName) -> bytes:
        """Returns what only a holder of the fleet key can compute. It depends on the page's name and not on its bytes.

        The key ID alone is no evidence: it has 16 bits, and two fleets may have the same.
        """
        named = b"pagetier proof of the key" + page.key + page.space
        return hmac.digest(self._fleet_key, named, "sha256")[:_PROOF_BYTES]

    def _cipher(self, key: bytes, nonce: bytes, tag: bytes | None) -> Cipher[modes.GCM]:
        page_key = hmac.digest(self._fleet_key, key, "sha256")
        return self._ciphers.Cipher(self._ciphers.algorithms.AES(page_key), self._ciphers.modes.GCM(nonce, tag))


def copy_to_frames(data: memoryview, frames: Sequence[memoryview]) -> None:
    """Copies an object's bytes after the header to the frames."""
    at = 0
    for part in _parts(frames, len(data)):
        part[:] = data[at : at + len(part)]
        at += len(part)


def _fixed(codec: PageCodec, page: PageName, size: int) -> bytes:
    return _FIXED.pack(MAGIC, VERSION, codec.codec, codec.key_id, HEADER_BYTES, size, page.key, page.space)


def _parts(frames: Sequence[memoryview], size: int) -> Iterator[memoryview]:
    """Yields the parts of the frames that contain the page."""
    for frame in frames:
        if size <= 0:
            return
        yield frame[:size]
        size -= len(frame)
