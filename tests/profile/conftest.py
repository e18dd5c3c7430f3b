"""Benchmarks that are tested here are scripts beside the package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
