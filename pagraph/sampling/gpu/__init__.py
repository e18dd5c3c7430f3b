"""Sampling on a device: the graph's copy there, launches and kernels."""
