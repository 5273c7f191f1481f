"""Chance that can be had again: the seed is in the log of a test that fails."""

from __future__ import annotations

import logging
import os
import secrets

import numpy as np


def chance() -> np.random.Generator:
    """Random numbers from a new seed, or from $PAGETIER_SEED."""
    seed = int(os.environ.get("PAGETIER_SEED") or secrets.randbits(32))
    logging.getLogger("chance").warning("PAGETIER_SEED=%d", seed)
    return np.random.default_rng(seed)
