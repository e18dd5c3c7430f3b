"""Options that users set: dataclasses that check themselves, and names; none of it imports torch.

So the command line says what is wrong with an option before it waits for anything.
"""

from .partitioning import CacheTrial, PartitionOptions
from .pipeline import PipelineOptions
from .training import TrainOptions

__all__ = ["CacheTrial", "PartitionOptions", "PipelineOptions", "TrainOptions"]

__dir__ = __all__.copy
