"""Feature rows by id: from memory, from disk, narrowed, from a cache or a device."""

from ..graph.field_version import FieldVersion
from ..graph.indexed_rows import IndexedRows
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
    "on_disk",
]


def __dir__() -> list[str]:
    return __all__
