"""The fleet as the daemon uses it: what other hosts have stored is located, read and written by a worker process.

What the fleet has is never in the index: engines ask. While it does not answer, a circuit breaker keeps engines from
asking, and the host works as without a fleet.
"""
