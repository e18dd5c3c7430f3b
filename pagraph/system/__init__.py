"""Services below all other rooms: units of bytes and counts as text."""
