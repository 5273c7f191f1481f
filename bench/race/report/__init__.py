"""Writes docs/race.md and its pictures from the results."""
