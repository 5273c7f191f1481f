"""The disk tier as the daemon runs it: supervises the worker process and decides what it writes, reads and drops.

The worker only moves bytes; the decisions are made here, against the index. Without a worker there is no disk tier, and
the memory tier continues unchanged.
"""
