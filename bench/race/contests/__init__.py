"""What is measured. Each module, and the trust contest, has measure(), which yields lines of results."""
