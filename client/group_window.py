"""Attention to the last tokens alone."""

from pagetier.client.group_base import Group, require_count


class SlidingWindow(Group, frozen=True):
    """A hit needs the pages with the last window - 1 tokens before it: the next token sees itself, too.

    Attributes:
        window: tokens that a token sees, itself among them; 1 or more.
    """

    window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("window", self.window)

    @property
    def needs(self) -> int:
        """What the next token sees besides itself."""
        return self.window - 1
