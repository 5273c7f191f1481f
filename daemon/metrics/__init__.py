"""What the daemon tells Prometheus: read out of the shared counters when somebody scrapes, and at no other time.

`address` says where, `look` takes the numbers, `families` names them, `listener` answers. The last two import
prometheus_client, so they are imported only where the configuration asks for metrics.
"""
