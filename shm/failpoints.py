"""Named points between the steps of a change that other processes can see: where a test ends or stops a process.

Here they do nothing. The crash suite puts a module in this one's place that does; failpoints.h has those of the core.
"""

from __future__ import annotations


def point(name: str, /) -> None:
    """Nothing, in some 0.1 µs: for what happens once a request, never once a page."""
