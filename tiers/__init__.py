"""Stores pages beyond the arena: one small interface, and each store behind it in a worker process.

A tier's worker attaches like an engine: it pins pages to write them out and fills frames to read them in. This package
imports only ``pagetier.shm``. The disk tier is in ``pagetier.tiers.lmdb``.
"""
