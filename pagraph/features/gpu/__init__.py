"""Feature rows for a device: kernels, caches on the device, and transfer paths."""
