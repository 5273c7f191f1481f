"""Adapters: how the cache of one inference engine becomes pages and back, one module or folder for each engine."""
