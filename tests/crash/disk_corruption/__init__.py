"""Disk corruption: any page of a tier's file is damaged; every page that is served is exact, or a miss."""
