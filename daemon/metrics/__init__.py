"""Metrics for Prometheus, read from the shared counters during a scrape.

`numbers` are those that only the daemon knows, `sample` reads the others, and `families` names them all. The HTTP
process serves them (`daemon/http`); it alone imports prometheus_client.
"""
