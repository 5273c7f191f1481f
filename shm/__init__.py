"""The shared index and arena, and the session by which a process attaches.

The core is C11 in headers of its own (``core/``), without Python; ``_core`` is one thin binding on the
stable ABI, and the modules beside it are its typed face. This room knows no other room.
"""
