"""The LMDB errors that mean damaged trees."""

from __future__ import annotations

from typing import Final

import lmdb

# If LMDB meets damage while it looks up a database's root, it reports nothing at first, and then BadTxnError for every
# further call of the transaction.
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
