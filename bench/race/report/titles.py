"""The titles of the contests, in the report's order."""

TITLES = {
    "trust": "Trust",
    "lookup": "Is it cached?",
    "copies": "Store and load",
    "disk": "Disk",
    "serving": "Serving with vLLM on the CPU",
    "sharing": "Four engines on one host",
    "router": "Four vLLM engines behind a router",
}
