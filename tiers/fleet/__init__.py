"""The fleet tier: pages that many hosts share through a store of objects.

Each store is one module, the only one that imports its library. ``pagetier.tiers.fleet.object_fleet`` is the tier over
any of them. See docs/design/fleet.md.
"""
