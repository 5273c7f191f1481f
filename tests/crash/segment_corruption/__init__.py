"""Segments that are damaged while no daemon has them, a real daemon that adopts them, and an engine that looks."""
