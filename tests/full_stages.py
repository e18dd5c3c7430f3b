"""Waits until a loader's threads have prepared all batches that they may."""

import time


def settle(loader):
    """Wait until no batch is being prepared: the stage is full."""
    asked = -1
    while asked != (now := loader.stats.total.reads.total.asked):
        asked = now
        time.sleep(0.02)
