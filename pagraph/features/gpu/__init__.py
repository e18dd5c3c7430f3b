"""Feature rows for a device: transfer paths, kernels, caches on the device."""
