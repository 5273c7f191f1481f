"""The process that owns the index: config, control socket, evictor, reaper, tier workers, metrics, CLI.

It alone changes the dictionary, the entries and the lists. This room imports ``tiers`` and ``shm``, and never
torch, so that it starts quickly and anywhere.
"""
