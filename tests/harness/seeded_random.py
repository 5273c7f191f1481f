"""Reproducible random numbers: the log of a failed test contains the seed."""

from __future__ import annotations

import logging
import os
import secrets

import numpy as np


def chance() -> np.random.Generator:
    """Returns random numbers from a new seed, or from $TEST_SEED."""
    seed = int(os.environ.get("TEST_SEED") or secrets.randbits(32))
    logging.getLogger("chance").warning("TEST_SEED=%d", seed)
    return np.random.default_rng(seed)
