"""The systems, each with the same small interface: cache.py."""
