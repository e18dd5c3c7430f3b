"""Options that users set: dataclasses that check themselves, and names of policies and methods.

Nothing here imports torch, so that the command line reports a wrong option at once.
"""

from .partitioning import CacheTrial, PartitionOptions
from .pipeline import PipelineOptions
from .training import TrainOptions

__all__ = ["CacheTrial", "PartitionOptions", "PipelineOptions", "TrainOptions"]

__dir__ = __all__.copy
