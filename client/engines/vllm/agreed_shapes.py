"""Compares what the workers report at start: a page is complete when each rank of its division has stored a part."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pagetier.client.engines.vllm.connector_metadata import ShapesMetadata
from pagetier.client.engines.vllm.namespace import PageShape

log = logging.getLogger("vllm.pagetier")


def agreed_shapes(reports: Iterable[object], ranks: int) -> tuple[PageShape, ...]:
    """Returns the page shapes of all groups, division by division; none after a log line if nothing can be cached.

    Args:
        reports: What the workers have sent. Those that cannot cache the model have sent something else.
        ranks: The number of ranks of the engine.
    """
    reported = [one for one in reports if isinstance(one, ShapesMetadata) and one.shapes]
    by_division = {one.division: one.shapes for one in reported}
    if 0 < len(reported) < ranks:
        log.warning(
            "pagetier caches nothing: %d of %d ranks cannot cache this model, their log lines have the reason",
            ranks - len(reported),
            ranks,
        )
        return ()
    if any(one.shapes != by_division[one.division] for one in reported):
        log.warning("pagetier caches nothing: the page layouts of the ranks differ")
        return ()
    return tuple(shape for _, shapes in sorted(by_division.items()) for shape in shapes)
