"""The HTTP interface: metrics, health, lookups, prefetch and hints.

It is a process of its own, so that no request of a peer, however large or slow, delays the loop that answers engines.

`http_server` runs it from the daemon's side, `channel_messages` is what the two say to each other, and `__main__` is
its program. There, `http_connection` handles one HTTP connection with h11, `peers` says what a caller may do, `api`
answers requests, and `openapi` describes them. `page` has the page at `/`; in the daemon, `notable_events` keeps
for it what was logged.
"""
