"""The base class of pagetier's exceptions."""


class PagetierError(Exception):
    """Any error that pagetier raises on purpose, apart from TypeError and ValueError for wrong arguments.

    A LayoutError is also a ValueError.
    """
