"""Keeps pages beyond the arena, in tiers behind one small interface: the disk of this host, and a fleet of hosts.

A worker process attaches like an engine: it pins pages to write them out and fills frames to read them in. This package
imports only ``pagetier.shm``. ``worker`` is on top; ``fleet``, ``disk`` and the two stores of the disk tier, ``lmdb``
and ``frame_files``, do not know it.

A *store* is a layout of files in a folder; an *object store* is the program that keeps a fleet's objects. *Capacity*
counts the frames that fit; a *cap* limits the bytes of files.
"""
