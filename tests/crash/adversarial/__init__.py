"""Adversarial peers, an honest engine beside them, and measurements of their cost for the daemon."""
