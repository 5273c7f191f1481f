"""The CPU path: copies in host memory."""
