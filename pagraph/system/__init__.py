"""What the library asks of, and tells about, the machine: units of bytes and counts."""
