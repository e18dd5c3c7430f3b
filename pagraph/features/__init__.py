"""Feature rows by id, from memory, disk, a cache or a device."""

from ..graph.fields import FieldVersion
from ..graph.stored_rows import IndexedRows, NarrowRows
from .disk import DiskFeature, on_disk
from .feature import DeviceFeature, Feature, HostFeature
from .store import CachedFeature, FeatureCache, Hits

__all__ = [
    "CachedFeature",
    "DeviceFeature",
    "DiskFeature",
    "Feature",
    "FeatureCache",
    "FieldVersion",
    "Hits",
    "HostFeature",
    "IndexedRows",
    "NarrowRows",
    "on_disk",
]

__dir__ = __all__.copy
