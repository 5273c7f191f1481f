"""The process that serves a tier. It attaches like an engine; the daemon requests which pages it writes and reads."""
