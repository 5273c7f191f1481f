"""One simulator of a host: random process deaths, long runs, and an engine in each slot."""
