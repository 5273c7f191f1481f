"""Pages that are written to the disk together."""

from __future__ import annotations

import msgspec


class WriteBatch(msgspec.Struct, frozen=True):
    """Pages that were chosen, a packed array each."""

    entries: bytes
    serials: bytes
    keys: bytes
    sizes: bytes
    spaces: bytes
    ticks: bytes
    chains: bytes

    def __len__(self) -> int:
        return len(self.entries) // 4

    def only(self, which: list[int]) -> WriteBatch:
        """Those pages alone, in order."""
        widths = (4, 8, 32, 8, 4, 8, 4)
        fields = (getattr(self, name) for name in self.__struct_fields__)
        return WriteBatch(
            *(b"".join(field[i * n : i * n + n] for i in which) for field, n in zip(fields, widths, strict=True))
        )
