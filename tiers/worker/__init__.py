"""The process that serves a tier: attached like an engine, told by the daemon what to write and what to read in."""
