"""Numbers that kernels and their callers share: the report of a batch that is being drawn.

See ``kernels/batch.py``. Without numba, so that importing a sampler does not load it.
"""

# Statuses: errors, then stops at which the caller acts.
DONE = 0
BAD_SEED = 1
BAD_ROW = 2
BAD_SOURCE = 3
FULL = 4
ASK_OFFSETS = 5
ASK_ROWS = 6
ASK_EDGES = 7
PICK = 8

# Indices of the report.
STATUS = 0
WHAT = 1
EDGE_TYPE = 2
BYTES = 3
HOP = 4
PHASE = 5
ROW = 6
EDGE = 7
REPORT = 8

# Phases of a hop along an edge type; ``FRESH``: of a batch of which nothing is done.
FRESH = -1
BEGIN = 0
MEASURE = 1
PICKING = 2
READING = 3

CALLER = -2
"""A fan-out: the caller picks."""

# Columns of ``csc`` that callers change.
IDS = 2
FLAGS = 6
KNOWN_OFFSETS = 7
KNOWN_EDGES = 8
KNOWN_IDS = 9

# Flags of an edge type.
NARROW = 1
NARROW_IDS = 2
