"""Kernels that give every vertex to one of the parts that hold it nearest; parts come one after the other."""

import numpy as np

from ..._jit import kernel
from ...sampling._cpu import _A, _B, mix

_S11 = np.uint64(11)


@kernel
def take_nearer(ids, hop_ends, part, owner, nearest, sizes, tied):  # type: ignore[no-untyped-def]
    """Let ``part``, of the vertices ``ids`` by hop, take those that earlier parts hold farther off or not at all.

    ``sizes`` is how many vertices each part has; ``tied[p]`` becomes how many of part ``p``'s are as near to ``part``.
    """
    begin = np.int64(0)
    for hop in range(len(hop_ends)):
        for i in range(begin, hop_ends[hop]):
            v = ids[i]
            if hop < nearest[v]:
                if owner[v] >= 0:
                    sizes[owner[v]] -= 1
                owner[v] = part
                nearest[v] = hop
                sizes[part] += 1
            elif hop == nearest[v]:
                tied[owner[v]] += 1
        begin = hop_ends[hop]


@kernel
def take_ties(ids, hop_ends, part, owner, nearest, sizes, shares):  # type: ignore[no-untyped-def]
    """Let ``part`` take ``shares[p]`` of what part ``p`` has and is as near to ``part``, chosen by a hash."""
    begin = np.int64(0)
    for hop in range(len(hop_ends)):
        for i in range(begin, hop_ends[hop]):
            v = ids[i]
            own = owner[v]
            if own != part and hop == nearest[v]:
                drawn = mix(np.uint64(v) * _A + np.uint64(part) * _B)
                if np.float64(drawn >> _S11) * 2.0**-53 < shares[own]:
                    owner[v] = part
                    sizes[own] -= 1
                    sizes[part] += 1
        begin = hop_ends[hop]
