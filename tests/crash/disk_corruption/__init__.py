"""Damage of the disk: a tier's file is not what was written, anywhere; what is served is exact or a miss."""
