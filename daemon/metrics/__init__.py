"""Metrics for Prometheus, read from the shared counters during a scrape.

`sample` reads the numbers, `families` names them, `http` handles a connection and `endpoint` serves the address.
`endpoint` and `families` import prometheus_client and are therefore imported only if metrics are configured.
"""
