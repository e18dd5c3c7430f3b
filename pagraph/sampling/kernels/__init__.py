"""Compiled sampling kernels for the CPU; imported when first used."""
