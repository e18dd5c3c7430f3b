"""Feature rows by id: from memory, from disk, from a device, through a cache; and the fields of a loader."""

from ..field_version import FieldVersion
from ..indexed_rows import IndexedRows
from .accelerated import AcceleratedFeature
from .cached import CachedFeature
from .device import DeviceFeature
from .disk import DiskFeature
from .feature import Feature
from .fields import FieldRows, FieldSet
from .hits import Hits
from .host import HostFeature
from .placement import on_disk
from .transfer import Transfer

__all__ = [
    "AcceleratedFeature",
    "CachedFeature",
    "DeviceFeature",
    "DiskFeature",
    "Feature",
    "FieldRows",
    "FieldSet",
    "FieldVersion",
    "Hits",
    "HostFeature",
    "IndexedRows",
    "Transfer",
    "on_disk",
]
