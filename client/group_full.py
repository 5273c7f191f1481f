"""Attention to all that came before."""

from pagetier.client.group_base import EVERYTHING, Group


class FullAttention(Group, frozen=True):
    """MHA, GQA, MLA: a hit needs every page up to it."""

    @property
    def needs(self) -> int:
        """All there are."""
        return EVERYTHING
