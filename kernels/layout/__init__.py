"""Layouts of engines' caches and of pages, and the tables of a copy between them."""
