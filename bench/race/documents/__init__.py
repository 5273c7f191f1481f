"""The tables of the documentation that are made from results files."""
