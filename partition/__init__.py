"""Partitioning: each GPU gets its own train vertices and everything they reach in L hops."""
