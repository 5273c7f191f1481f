"""Keys made from an engine's own hashes, in C: rejected arguments. The client's tests of keys check the results."""

from __future__ import annotations

from typing import Any

import pytest

from pagetier.shm._core import KEY_BYTES, keys_of_hashes

DIGEST = bytes(range(32))


@pytest.mark.parametrize("digest", [b"", DIGEST[:31], DIGEST + b"x"])
def test_a_digest_has_32_bytes(digest: bytes) -> None:
    with pytest.raises(ValueError, match=rf"a namespace's digest has 32 bytes, not {len(digest)}"):
        keys_of_hashes([bytes(KEY_BYTES)], digest)


@pytest.mark.parametrize("hashes", [{bytes(KEY_BYTES)}, bytes(KEY_BYTES), iter([bytes(KEY_BYTES)]), None])
def test_hashes_are_a_list_or_a_tuple(hashes: Any) -> None:
    with pytest.raises(TypeError, match="a list or a tuple of bytes"):
        keys_of_hashes(hashes, DIGEST)


def test_errors_name_the_invalid_hash() -> None:
    class Odd:
        pass

    with pytest.raises(TypeError, match="hash 20 must be bytes, not Odd"):
        keys_of_hashes([bytes(KEY_BYTES)] * 20 + [Odd()], DIGEST)  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"hash 1 has 0 bytes, not 32: use keys_of\(\)"):
        keys_of_hashes((bytes(KEY_BYTES), b""), DIGEST)
