"""Copies pages between an engine's cache and the frames of the arena.

A layout is a set of strides, and several copy paths move the same bytes behind one interface. This package imports only
``pagetier.shm``; torch and triton are imported where a GPU is used, so that a host without them can still copy.
"""
