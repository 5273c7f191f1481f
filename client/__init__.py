"""What an engine imports: keys, match, load, store and prefetch.

Nothing here raises in an engine's hot path: an unreachable, stopped or restarted daemon is a miss. This room
imports ``kernels`` and ``shm``, and never a store.
"""
