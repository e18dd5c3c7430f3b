"""Ways to have a disk read many places at once, and what they cost here."""
