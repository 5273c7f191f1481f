"""The disk tier as the daemon runs it: supervises the worker processes and decides what they write, read and drop.

A worker only moves bytes; the decisions are made here, against the index. Without a worker there is no disk tier, and
the memory tier continues unchanged.

The *tier* is the disk as a whole (disk_tier.py). A *device* is a folder with a worker (disk_device.py). It has an
opening, commands in flight, flushes, health and a status. The devices share write-behind, the write budget, the reads
and the back-pressure, and know of the tier only what surroundings.py names.
"""
