"""The reason why a file descriptor cannot be opened, with the limit that an administrator can raise."""

from __future__ import annotations

import errno
from typing import Final

_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


def reason_with_limit(error: OSError) -> str:
    """Returns the reason, to be appended to what failed, and names the limit if no descriptor was left."""
    advice = ": see LimitNOFILE of the unit, or ulimit -n" if error.errno in _NO_DESCRIPTORS else ""
    return f": {error.strerror}{advice}"
