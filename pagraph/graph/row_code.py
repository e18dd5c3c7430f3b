"""The forms of stored rows as numbers, which kernels and their callers share."""

__all__ = ["BFLOAT16", "FLOAT16", "HEAD", "INT8"]

FLOAT16 = 0
BFLOAT16 = 1
INT8 = 2
HEAD = 4
"""Bytes before the values of an int8 row: its scale, a float32."""
