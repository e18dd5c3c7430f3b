"""Kernels that gather rows by id, from memory, a cache and mapped files, and look them up among
rows read ahead.

Distances were measured on a table of 1 M rows of 128 float32, 100 000 random ids, one thread (ms):
torch 4.6, no prefetch 4.5, 8 rows ahead 2.8, 16 ahead 2.6, 32 ahead 3.0; rows of 128 bytes: 0.74 at
16, 0.61 at 32. Wide rows are asked for past the innermost cache since: 32 ahead took 47 ns a row of
512 bytes (110 of 1 KiB) where 16 ahead into that took 55 (130); at 48 to 192 ahead nothing changed,
and rows of 128 bytes took 2 ns longer so. NumPy's large arrays begin 16 bytes after a cache line
does, so that rows reach into one line more than their size says. Asking for that one too took
``gather`` from 21 to 7 ns a row of 64 bytes, from 22 to 8 (128) and from 34 to 31 (512); where rows
begin with a line, nothing changed.

``table`` says which of ``rows`` a row is: an array for rows by reference, else None. Kernels are
compiled for each. Looking it up costs 3 ns a row (16 bytes: 2.5 to 5.5; 128 bytes: 6 to 9). Where
it is None ``gather_part`` sees so in its own body, 0.4 ns a row faster than in the functions it
calls.

Many rows are written past the caches, which else read each line of the output before it is
overwritten: 25 MB of rows of 512 bytes took 2.3 ms for 4.5 (Intel, one thread; 128 bytes: 4.5 for
6.8, 400 bytes: 3.4 for 5.8), and summing them right afterwards as long as before. Below 4 MiB they
are in the cache when that begins, and it is faster so.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .._jit import array_at, kernel, prefetch, prefetch_outer, store_release
from ..sampling.kernels.hop import place_of
from ..system._paging import is_cold


def _element(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """LLVM's pointer to ``array[offset]``, unchecked."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


@intrinsic
def copy_bytes(typingctx: Any, out: Any, to: Any, source: Any, start: Any, count: Any) -> Any:
    """Copy ``count`` bytes from ``source[start:]`` to ``out[to:]``, both 1-D uint8 arrays.

    With a literal ``count`` LLVM turns the call into one load and one store; otherwise it is the C
    library's memcpy, which beats a loop over words by 10-20 % on 512-byte rows, and needs one
    compiled kernel instead of one per width.
    """
    # A literal count is known when this is compiled; others arrive as the fifth argument.
    literal = count.literal_value if isinstance(count, types.IntegerLiteral) else None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _element(context, builder, out, args[0], args[1])
        origin = _element(context, builder, source, args[2], args[3])
        i1 = ir.IntType(1)
        i64 = ir.IntType(64)
        length = args[4] if literal is None else i64(literal)
        fn_type = ir.FunctionType(ir.VoidType(), [target.type, origin.type, i64, i1])
        fn = cgutils.get_or_insert_function(builder.module, fn_type, "llvm.memcpy.p0i8.p0i8.i64")
        builder.call(fn, [target, origin, length, i1(0)])
        return context.get_dummy_value()

    count_type = types.intp if literal is None else count
    return types.void(out, types.intp, source, types.intp, count_type), codegen


@intrinsic(prefer_literal=True)
def stream_bytes(typingctx: Any, out: Any, to: Any, source: Any, start: Any, count: Any) -> Any:
    """Copy a literal ``count`` of bytes, a power of two that divides the address of ``out[to]``,
    past the caches."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.VectorType(ir.IntType(64), count.literal_value // 8).as_pointer()
        target = builder.bitcast(_element(context, builder, out, args[0], args[1]), word)
        origin = builder.bitcast(_element(context, builder, source, args[2], args[3]), word)
        store = builder.store(builder.load(origin, align=1), target, align=count.literal_value)
        past_caches = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", past_caches)
        return context.get_dummy_value()

    return types.void(out, types.intp, source, types.intp, count), codegen


@intrinsic
def _end_stream(typingctx: Any) -> Any:
    """Let other threads see all that :func:`stream_bytes` wrote before what this one writes from
    now on."""
    return types.void(), lambda context, builder, signature, args: builder.fence("seq_cst")


# How far ahead of the copy slots and rows are prefetched: measured, see above.
_SLOTS_AHEAD = 32
# Rows between asking for a cache line and using it: rows take longer to copy than single elements.
_ROWS_AHEAD = 32
# Bytes of a cache line, and of a store that every x86-64 (SSE2) and ARM (NEON) has.
_LINE = 64
# Bytes that one instruction moves; rows and their copies begin on such a border.
_WORD = 16
# Bytes of a row from which the gain of stores past the caches was measured.
_NARROW = 128
# Output in bytes from which stores go past the caches; below, readers find it there.
_MANY = 1 << 22


@kernel
def stream_width(out, row_bytes):
    """Bytes that each store of many rows writes past the caches, if both they and ``out`` are
    aligned; else 0."""
    if len(out) < _MANY or row_bytes < _NARROW:
        return 0
    # A number that divides both divides their bitwise or, if it is a power of 2.
    address = out.ctypes.data | row_bytes
    if address % _LINE == 0:
        return _LINE
    if address % _WORD == 0:
        return _WORD
    return 0


@kernel
def copy_row(out, to, rows, start, row_bytes, width):
    """Copy one row; the narrow ones (labels, masks) without a call. ``width`` is of
    :func:`stream_width`, or 0."""
    if width == _LINE:
        for at in range(0, row_bytes, _LINE):
            stream_bytes(out, to + at, rows, start + at, 64)
    elif width == _WORD:
        for at in range(0, row_bytes, _WORD):
            stream_bytes(out, to + at, rows, start + at, 16)
    elif row_bytes == 8:
        copy_bytes(out, to, rows, start, 8)
    elif row_bytes == 4:
        copy_bytes(out, to, rows, start, 4)
    elif row_bytes == 1:
        copy_bytes(out, to, rows, start, 1)
    else:
        copy_bytes(out, to, rows, start, row_bytes)


@kernel
def prefetch_run(array, start, count, line):
    """Ask for a run of elements, ``line`` of which make a cache line."""
    # Rows of more than two lines stay out of the innermost cache, which they would empty.
    if count <= 2 * line:
        for offset in range(0, count, line):
            prefetch(array, start + offset)
    else:
        for offset in range(0, count, line):
            prefetch_outer(array, start + offset)
    # A run that begins within a line may end in one more, see above; one of a quarter line seldom
    # does.
    if 4 * count > line:
        prefetch(array, start + count - 1)


@kernel
def located(table, limit, row):
    """Place of a row, which may be any number, among the ``limit`` rows of the source; -1 if it has
    none."""
    if table is None:
        place = np.int64(row)
    else:
        if row < 0 or row >= len(table):
            return np.int64(-1)
        place = np.int64(table[row])
    return place if 0 <= place < limit else np.int64(-1)


@kernel
def count_rows(table, limit):
    """Number of rows: that of the table, or without one the source's ``limit``."""
    return limit if table is None else len(table)


@kernel
def aimed(table, row):
    """Place of a row, to prefetch it; any place for a wrong row, which is refused when it is
    read."""
    if table is None:
        return np.int64(row)
    if row < 0 or row >= len(table):
        return np.int64(0)
    return np.int64(table[row])


@kernel
def prefetch_entry(table, row):
    """Ask for what the table says of a row; a wrong row does no harm."""
    if table is not None:
        prefetch(table, row)


@kernel
def gather(rows, stride, row_bytes, limit, table, ids, out):
    """Copy row ``ids[i]`` to place ``i``; returns -1, or the position of a bad id."""
    count = len(ids)
    width = stream_width(out, row_bytes)
    for i in range(count):
        if i + 2 * _ROWS_AHEAD < count:
            prefetch_entry(table, np.int64(ids[i + 2 * _ROWS_AHEAD]))
        if i + _ROWS_AHEAD < count:
            start = aimed(table, np.int64(ids[i + _ROWS_AHEAD])) * stride
            prefetch_run(rows, start, row_bytes, _LINE)
        row = located(table, limit, np.int64(ids[i]))
        if row < 0:
            return i
        copy_row(out, i * row_bytes, rows, row * stride, row_bytes, width)
    if width:
        _end_stream()
    return -1


@kernel
def gather_each(fields, like, like_ids):
    """:func:`gather` from several sources, each by ids of its own; returns the field and the
    position of a bad id, or -1 and -1.

    Each of ``fields`` is the address of the rows, ``stride``, ``row_bytes``, ``limit``, the address
    of the output, and address and number of the ids; ``like`` is any array of uint8, ``like_ids``
    one of the ids' dtype.
    """
    for f in range(len(fields)):
        address, stride, row_bytes, limit, to, ids_at, count = fields[f]
        rows = array_at(like, address, limit * stride)
        ids = array_at(like_ids, ids_at, count)
        out = array_at(like, to, count * row_bytes)
        bad = gather(rows, stride, row_bytes, limit, None, ids, out)
        if bad >= 0:
            return f, bad
    return -1, -1


@kernel
def find_slot(slots, num_cached, row):
    """The cache's place of a row, or -1; ``row`` may be any number."""
    # Tables are shared by fields with fewer rows in their caches: a place beyond is none.
    if row < 0 or row >= len(slots):
        return np.int64(-1)
    slot = np.int64(slots[row])
    return slot if slot < num_cached else np.int64(-1)


@kernel
def publish(slots, ids, places):
    """Set ``slots[ids[i]]`` to ``places[i]``: whoever reads a place there finds the row that was
    written before."""
    # Readers take no lock. The release keeps the processor (ARM's, above all) from showing them
    # the place before the row.
    for i in range(len(ids)):
        store_release(slots, np.int64(ids[i]), places[i])


@kernel
def gather_part(
    cached, num_cached, slots, rows, stride, row_bytes, limit, table, ids, stop, out, width
):
    """The first ``stop`` rows of :func:`gather_cached`; returns the hits, or -1 - position of a bad
    id."""
    count = len(ids)
    hits = 0
    for i in range(stop):
        if i + 2 * _ROWS_AHEAD < count:
            prefetch(slots, np.int64(ids[i + 2 * _ROWS_AHEAD]))
            # In this body, not by prefetch_entry: see the module's text.
            if table is not None:
                prefetch(table, np.int64(ids[i + 2 * _ROWS_AHEAD]))
        if i + _ROWS_AHEAD < count:
            row = np.int64(ids[i + _ROWS_AHEAD])
            slot = find_slot(slots, num_cached, row)
            if slot >= 0:
                prefetch_run(cached, slot * row_bytes, row_bytes, _LINE)
            else:
                prefetch_run(rows, aimed(table, row) * stride, row_bytes, _LINE)
        row = np.int64(ids[i])
        # Before the cache is asked: its table may be longer than the rows, for it is shared.
        if row < 0 or row >= count_rows(table, limit):
            return -1 - i
        slot = find_slot(slots, num_cached, row)
        if slot >= 0:
            copy_row(out, i * row_bytes, cached, slot * row_bytes, row_bytes, width)
            hits += 1
        else:
            if table is not None:
                row = located(table, limit, row)
                if row < 0:
                    return -1 - i
            copy_row(out, i * row_bytes, rows, row * stride, row_bytes, width)
    return hits


@kernel
def gather_cached(
    cached, num_cached, slots, rows, stride, row_bytes, limit, table, ids, ends, out, hits
):
    """:func:`gather`, from ``cached`` where possible; ``hits[k]`` counts from ``ends[k - 1]`` to
    ``ends[k]``."""
    # A call for each part, whose loop begins at 0, costs nothing (100 000 rows of 4 bytes: 0.83 ms,
    # as without parts). Loops from one end to the next, or one that looks for the next end, took
    # 0.95; for rows of 512 bytes all take 2.3.
    begin = 0
    width = stream_width(out, row_bytes)
    for part in range(len(ends)):
        found = gather_part(
            cached,
            num_cached,
            slots,
            rows,
            stride,
            row_bytes,
            limit,
            table,
            ids[begin:],
            ends[part] - begin,
            out[begin * row_bytes :],
            width,
        )
        if found < 0:
            return begin - 1 - found
        hits[part] = found
        begin = ends[part]
    if width:
        _end_stream()
    return -1


@kernel
def split(slots, num_cached, limit, ids, hit_slots, hit_places, miss_ids, miss_places):
    """Sort ids into hits and misses with their places; returns the hits, or -1 - position of a bad
    id."""
    hits = 0
    misses = 0
    for i in range(len(ids)):
        row = np.int64(ids[i])
        if row < 0 or row >= limit:
            return -1 - i
        slot = find_slot(slots, num_cached, row)
        if slot >= 0:
            hit_slots[hits] = slot
            hit_places[hits] = i
            hits += 1
        else:
            miss_ids[misses] = row
            miss_places[misses] = i
            misses += 1
    return hits


@kernel
def find_misses(slots, num_cached, ids, misses):
    """Write the ids without a place in the cache to ``misses``; returns how many."""
    count = 0
    for i in range(len(ids)):
        row = np.int64(ids[i])
        if find_slot(slots, num_cached, row) < 0:
            misses[count] = row
            count += 1
    return count


@kernel
def first_bad(ids, limit):
    """Position of the first id outside ``[0, limit)``, or -1."""
    for i in range(len(ids)):
        if ids[i] < 0 or ids[i] >= limit:
            return i
    return -1


@kernel
def count_cold(base, stride, limit, table, page, slots, num_cached, ids, samples, state):
    """Number of ``samples`` evenly spaced ``ids`` that are neither in the cache nor on a page in
    memory."""
    cold = 0
    step = max(1, len(ids) // samples)
    for i in range(0, len(ids), step):
        row = located(table, limit, np.int64(ids[i]))
        if row < 0 or find_slot(slots, num_cached, np.int64(ids[i])) >= 0:
            continue
        cold += is_cold(np.int64(base) + row * stride, page, state)
    return cold


@kernel
def locate(ids, slots, num_cached, nodes, table, shift, local_slots, places):
    """The cache's slot (else -1) of each row, and its place among rows read ahead (else 0); returns
    how many are in neither."""
    absent = 0
    mask = len(table) - 1
    for i in range(len(ids)):
        if i + _SLOTS_AHEAD < len(ids):
            prefetch(slots, np.int64(ids[i + _SLOTS_AHEAD]))
        row = np.int64(ids[i])
        slot = find_slot(slots, num_cached, row)
        local_slots[i] = slot
        places[i] = 0
        if slot < 0:
            place = place_of(row, nodes, table, mask, shift)
            if place < 0:
                absent += 1
            else:
                places[i] = place
    return absent


@kernel
def keep(nodes, old_nodes, old_table, old_shift, old_rows, row_bytes, rows, missing):
    """Copy rows that an earlier group of batches has read; the places of the others go to
    ``missing``, whose count is returned."""
    count = 0
    mask = len(old_table) - 1
    for place in range(len(nodes)):
        old = place_of(np.int64(nodes[place]), old_nodes, old_table, mask, old_shift)
        if old < 0:
            missing[count] = place
            count += 1
        else:
            copy_row(rows, place * row_bytes, old_rows, old * row_bytes, row_bytes, 0)
    return count


@kernel
def scatter(source, stride, row_bytes, ids, places, rows):
    """Copy row ``ids[i]`` of the source to place ``places[i]`` of ``rows``; ids are in range."""
    for i in range(len(ids)):
        # Rows on disk are wide: 16 ahead is enough, see above.
        if i + 16 < len(ids):
            prefetch_run(source, ids[i + 16] * stride, row_bytes, _LINE)
        copy_row(rows, places[i] * row_bytes, source, ids[i] * stride, row_bytes, 0)
