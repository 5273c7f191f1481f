"""Keeps pages beyond the arena: an interface, the LMDB tier behind it, and the worker process that serves a tier.

A worker attaches like an engine: it pins pages to write them to disk and fills granted frames to read them back. This
package imports ``shm`` only.
"""
