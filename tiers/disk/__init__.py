"""The disk tier: what both of its stores share.

A store is a folder of several environments, each with a thread that writes it. LMDB holds what is known of each page.
The store decides where the bytes lie: ``pagetier.tiers.lmdb`` or ``pagetier.tiers.frame_files``.
"""

from pagetier.tiers.disk.recovery import doubt, give_up

__all__ = ["doubt", "give_up"]
