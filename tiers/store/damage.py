"""What LMDB says of trees that are none."""

from __future__ import annotations

from typing import Final

import lmdb

# Where it meets one as it looks up a database's root, it says nothing at first, and of all that follows that the
# transaction is bad.
DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
    lmdb.BadTxnError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.MapResizedError,
)
