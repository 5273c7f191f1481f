"""How the bytes of pages are protected in objects: with a checksum or encrypted, compressed before or not."""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pagetier.shm._core import compress, expand
from pagetier.tiers.base import PageName
from pagetier.tiers.fleet.object_lengths import compressed_length, most_bytes
from pagetier.tiers.fleet.objects import (
    AES_256_GCM,
    COMPRESSED,
    COVERED_BYTES,
    HEADER_BYTES,
    NONCE_BYTES,
    PLAIN,
    PROOF_BYTES,
    ObjectHeader,
    pack_check,
    pack_header,
    parts_of,
)
from pagetier.tiers.page_checksum import CHECKSUM_BYTES, page_checksum

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import AEADDecryptionContext, AEADEncryptionContext, Cipher, modes


class PageCodec(Protocol):
    """How the bytes of pages are protected. Thread-safe."""

    codec: int
    key_id: int

    def pack(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> None:
        """Writes an object of HEADER_BYTES + `size` bytes to `out`."""

    def pack_compressed(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> int:
        """Writes an object of a compressed page to `out`. Returns its length, 0 if the page saves too little."""

    def verify(self, header: ObjectHeader, frames: Sequence[memoryview]) -> bool:
        """Verifies bytes that were copied to the frames, and decrypts them there. Returns whether they are exact."""

    def expand(self, header: ObjectHeader, data: memoryview, frames: Sequence[memoryview]) -> bool:
        """Fills the frames from a compressed page, `data`, and verifies them there. Returns whether they are exact."""

    def proof(self, page: PageName) -> bytes:
        """Returns what the header of a page's object has as `proof`; b"" if this codec needs none."""


class PlainCodec:
    """Pages with a checksum."""

    codec = PLAIN
    key_id = 0

    def pack(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> None:
        """Copies the page. The checksum is that of the frames: whatever happens to `out` later is found."""
        at = HEADER_BYTES
        for part in parts_of(frames, size):
            out[at : at + len(part)] = part
            at += len(part)
        self._pack_header(PLAIN, page, size, frames, out)

    def pack_compressed(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> int:
        """Compresses from the frames to `out`, with the same checksum."""
        nbytes = compress([*parts_of(frames, size)], out[HEADER_BYTES : max(HEADER_BYTES, most_bytes(size))])
        length = compressed_length(size, nbytes) if nbytes else 0
        if length:
            out[HEADER_BYTES + nbytes : length] = bytes(length - HEADER_BYTES - nbytes)
            self._pack_header(COMPRESSED, page, size, frames, out)
        return length

    def _pack_header(
        self, codec: int, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview
    ) -> None:
        out[:COVERED_BYTES] = pack_header(codec, self.key_id, page, size)
        out[COVERED_BYTES:HEADER_BYTES] = pack_check(page_checksum(page.key, size, frames))

    def verify(self, header: ObjectHeader, frames: Sequence[memoryview]) -> bool:
        """Compares the checksums."""
        return page_checksum(header.page.key, header.size, frames) == header.check

    def expand(self, header: ObjectHeader, data: memoryview, frames: Sequence[memoryview]) -> bool:
        """Expands and compares the checksums, whatever others write to `data`."""
        return expand(data, [*parts_of(frames, header.size)]) and self.verify(header, frames)

    def proof(self, page: PageName) -> bytes:
        """Returns b"": nothing keeps an object without a key from being of this fleet."""
        return b""


class EncryptedCodec:
    """Pages that are encrypted with keys derived from a fleet key: one for each page, and a random nonce.

    The tag covers the header, so that no object passes for another page. What is encrypted of a compressed page begins
    with the checksum of its bytes. Raises ImportError without `cryptography`.
    """

    codec = AES_256_GCM

    def __init__(self, fleet_key: bytes) -> None:
        from cryptography.hazmat.primitives import ciphers

        self._ciphers = ciphers
        self._fleet_key = fleet_key
        self.key_id = int.from_bytes(hmac.digest(fleet_key, b"pagetier key id", "sha256")[:2], "little")

    def pack(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> None:
        """Encrypts from the frames to `out`."""
        self._encrypt(self.codec, page, size, [*parts_of(frames, size)], out)

    def pack_compressed(self, page: PageName, size: int, frames: Sequence[memoryview], out: memoryview) -> int:
        """Compresses from the frames to memory of its own, since others may read `out`, and encrypts from there."""
        memory = memoryview(bytearray(size))
        nbytes = compress([*parts_of(frames, size)], memory[CHECKSUM_BYTES : max(CHECKSUM_BYTES, most_bytes(size))])
        length = compressed_length(size, CHECKSUM_BYTES + nbytes) if nbytes else 0
        if length:
            memory[:CHECKSUM_BYTES] = page_checksum(page.key, size, frames)
            coded = length - HEADER_BYTES
            memory[CHECKSUM_BYTES + nbytes : coded] = bytes(coded - CHECKSUM_BYTES - nbytes)
            self._encrypt(self.codec | COMPRESSED, page, size, [memory[:coded]], out)
        return length

    def _encrypt(self, codec: int, page: PageName, size: int, parts: Sequence[memoryview], out: memoryview) -> None:
        fixed, nonce = pack_header(codec, self.key_id, page, size), os.urandom(NONCE_BYTES)
        cipher: AEADEncryptionContext = self._cipher(page.key, nonce, None).encryptor()
        cipher.authenticate_additional_data(fixed)
        at = HEADER_BYTES
        for part in parts:
            cipher.update_into(part, out[at : at + len(part)])
            at += len(part)
        # The tag is known after the last byte, so the header is written last.
        cipher.finalize()
        out[:COVERED_BYTES] = fixed
        out[COVERED_BYTES:HEADER_BYTES] = pack_check(cipher.tag, nonce, self.proof(page))

    def verify(self, header: ObjectHeader, frames: Sequence[memoryview]) -> bool:
        """Decrypts in place: what is verified and what stays are the same bytes, in memory that no other has."""
        return self._decrypt(header, [(part, part) for part in parts_of(frames, header.size)])

    def expand(self, header: ObjectHeader, data: memoryview, frames: Sequence[memoryview]) -> bool:
        """Decrypts to memory that no other has, and expands from there."""
        memory = memoryview(bytearray(len(data)))
        if not self._decrypt(header, [(data, memory)]):
            return False
        whole = expand(memory[CHECKSUM_BYTES:], [*parts_of(frames, header.size)])
        return whole and page_checksum(header.page.key, header.size, frames) == memory[:CHECKSUM_BYTES]

    def _decrypt(self, header: ObjectHeader, parts: Sequence[tuple[memoryview, memoryview]]) -> bool:
        """Decrypts each part to another, and returns whether the tag is right."""
        from cryptography.exceptions import InvalidTag

        cipher: AEADDecryptionContext = self._cipher(header.page.key, header.nonce, header.check).decryptor()
        cipher.authenticate_additional_data(header.covered)
        for data, out in parts:
            cipher.update_into(data, out)
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
        return hmac.digest(self._fleet_key, named, "sha256")[:PROOF_BYTES]

    def _cipher(self, key: bytes, nonce: bytes, tag: bytes | None) -> Cipher[modes.GCM]:
        page_key = hmac.digest(self._fleet_key, key, "sha256")
        return self._ciphers.Cipher(self._ciphers.algorithms.AES(page_key), self._ciphers.modes.GCM(nonce, tag))
