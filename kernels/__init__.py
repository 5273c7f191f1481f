"""Copying pages between an engine's cache and the frames of the arena.

Layouts are strides, and there are several ways to move the same bytes behind one interface. This room knows
only ``shm``; what needs a GPU imports torch and triton where it is used, so that a host without them can
still copy.
"""
