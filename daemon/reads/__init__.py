"""Reads of pages from the tiers below memory, disk and fleet, for engines and hints: one request may need both.

The disk's tier and the fleet's tier hand their workers' reports in. How a tier writes, and how it is, lies in its own
folder.
"""
