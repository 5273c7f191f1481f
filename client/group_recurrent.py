"""State that is carried from token to token: Mamba, gated delta, linear attention."""

from pagetier.client.group_base import Group


class Recurrent(Group, frozen=True):
    """A page is a snapshot of the state at its end; a hit needs the one that ends just there."""

    @property
    def needs(self) -> int:
        """The last token, and so the page that ends with it."""
        return 1
