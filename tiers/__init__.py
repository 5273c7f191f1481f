"""Where pages live beyond the arena: one small interface, and each store behind it in a worker process.

A tier attaches like an engine: it pins pages to write them out and fills frames to read them in. This room
knows only ``shm``. Nothing is built yet: pages live in memory alone.
"""
