"""The disk tier as the daemon runs it: a worker process that is kept running, told what to write, asked to read in.

The worker moves bytes; what is written, read in and dropped is decided here, against the index. Without a worker there
is no disk tier, and nothing else changes.
"""
