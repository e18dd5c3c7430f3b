"""Proves written parts against their source, with code that shares nothing with what wrote them."""
