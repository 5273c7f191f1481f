"""Allocates memory until its control group has none left: `python -m host_events.hog`, killed after the victim."""

from __future__ import annotations

import time

_PIECE = 1 << 20


def main() -> None:
    """Runs until it is killed."""
    taken = []
    while True:
        taken.append(b"x" * _PIECE)
        time.sleep(0.001)


if __name__ == "__main__":
    main()
