"""The process that owns the index: configuration, control socket, evictor, reaper, disk workers, metrics and CLI.

Only the daemon changes the dictionary, the entries and the lists. This package imports ``tiers`` and ``shm``, and never
torch, so that it starts quickly and on any host.
"""
