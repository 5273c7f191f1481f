"""The shared index and arena, and the session with which a process attaches to them.

The core is C11 in headers (``core/``) and does not depend on Python; ``_core`` is a thin binding for the stable ABI,
and the modules beside it are its typed interface. This package imports no other package of pagetier.
"""
