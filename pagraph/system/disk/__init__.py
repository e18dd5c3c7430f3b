"""Ways to read many places of a disk at once, and what they cost here."""

from .queues import unwatch, watch
from .ways import WAYS, refusal, usable_way

__all__ = ["WAYS", "refusal", "unwatch", "usable_way", "watch"]

__dir__ = __all__.copy
