"""The base class of pagetier's exceptions."""


class PagetierError(Exception):
    """The base class of what the Python API raises, apart from TypeError and ValueError for wrong arguments.

    A LayoutError is also a ValueError.
    """
