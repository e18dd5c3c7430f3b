"""Batches whose edges are picked by pickers in Python, hop by hop, in place of kernels."""

from unittest.mock import patch

from pagraph.sampling import sampler
from pagraph.sampling.sampler import HopSampler


def by_pickers(call):
    """What ``call`` returns where samplers leave each pick to their pickers."""
    with (
        patch.object(sampler, "_decides_itself", lambda sampler: True),
        patch.object(HopSampler, "plan", HopSampler._planned),
        patch.object(HopSampler, "known_plans", property(lambda sampler: {})),
    ):
        return call()
