"""The attack campaign: random trials of everything that a user, a disk or a machine may do to
pagraph.

    python -m tests.chaos                                 all parts, ten minutes
    python -m tests.chaos --part files --seconds 60       one part
    python -m tests.chaos --part files --case 12          one trial again

A trial follows from its part and one integer. A part is a module here with a function
``trial(case)``, which raises what is wrong; it runs in another process, which may crash, hang or
take all memory. To add

- a part: the module, and its name in ``PARTS``;
- a kind of file: a line in ``files.KINDS``, and the file in ``samples.build``;
- a kind of messy column: a function in ``tables.COLUMNS``;
- a verb: a line in ``verbs.VERBS``;
- a use of a graph whose arrays lie: a line in ``hostile.ANY``, ``PLAIN`` or ``TYPED``;
- a function or class: a line in ``arguments.calls``;
- a loader: a function in ``loaders.LOADERS``;
- a change of a graph, or a sampler that meets it: a line in ``edges.CHANGES`` or ``SAMPLERS``.
"""

PARTS = {
    "kills": "verbs killed or interrupted",
    "exhausted": "no disk, memory or descriptors left",
    "files": "damaged files of every kind",
    "tables": "messy tables, each column equal to what pandas and DuckDB read, or named",
    "hostile": "arrays that lie, every kernel with its indices checked",
    "arguments": "one wrong argument in a valid call",
    "user_code": "exceptions in the user's functions",
    "threads": "forks, threads, interrupts and copies of loaders",
    "interrupts": "Ctrl-C at every place where Python looks for it",
    "edges": "edges, vertices and rows that change within an epoch",
    "batches": "memory of endless epochs",
    "kernel_files": "damaged files of compiled kernels",
}
"""Those that fork a process that has no threads yet come first."""
ROUNDS = {"interrupts": 64}
"""Parts of which so many trials are made, however long they take: each visits other places."""
BOUNDS_CHECKED = {"hostile"}
"""Those in whose process numba checks every index."""
