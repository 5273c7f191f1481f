"""Peers that mean harm, an honest engine beside them, and a look at what they cost the daemon."""
