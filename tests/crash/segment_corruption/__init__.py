"""Segment corruption: segments are damaged while no daemon runs, then a real daemon adopts them and an engine reads."""
