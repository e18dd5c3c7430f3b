"""Kernels that gather rows by id from memory, a cache, mapped files, and rows read ahead.

Rows are prefetched. Measured on a table of 1 M rows of 128 float32 with 100,000 random ids, one
thread: torch took 4.6 ms, no prefetch 4.5, 8 rows ahead 2.8, 16 ahead 2.6, 32 ahead 3.0. Rows of
128 bytes took 0.74 ms with 16 ahead and 0.61 with 32. Since then wide rows bypass the innermost
cache: with 32 ahead a row of 512 bytes took 47 ns (1 KiB: 110), against 55 (130) with 16 ahead into
that cache. 48 to 192 ahead changed nothing. Rows of 128 bytes lost 2 ns that way.

NumPy's large arrays begin 16 bytes after the start of a cache line, so rows extend into one more
line. Prefetching this one too took ``gather`` from 21 to 7 ns for rows of 64 bytes, from 22 to 8
(128) and from 34 to 31 (512). It changed nothing for rows that are aligned to lines.

``table`` gives the place of each row in ``rows``: an array for rows by reference, else None.
Kernels are compiled for each case. The look-up costs 3 ns a row (16 bytes: 2.5 to 5.5; 128 bytes: 6
to 9). ``gather_part`` tests for None in its own body, which is 0.4 ns a row faster than in the
functions that it calls.

Large outputs are written past the caches, which would otherwise read each line before it is
overwritten. 25 MB in rows of 512 bytes took 2.3 ms instead of 4.5 (Intel, one thread; 128 bytes:
4.5 instead of 6.8; 400 bytes: 3.4 instead of 5.8). Summing them right afterwards took no longer.
Below 4 MiB the output stays in the cache, where its readers find it, and normal stores are faster.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .._jit import array_at, kernel, prefetch, prefetch_outer, store_release
from ..graph._row_form import largest, narrow_run, round_levels, round_run, scale_for, widen_run
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
    """Copy a literal ``count`` of bytes with stores that bypass the caches.

    ``count`` is a power of two that divides the address of ``out[to]``.
    """

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
    """Make what :func:`stream_bytes` wrote visible to other threads before any later write."""
    return types.void(), lambda context, builder, signature, args: builder.fence("seq_cst")


# How far ahead slots and rows are prefetched, measured as the module's text says.
_SLOTS_AHEAD = 32
_ROWS_AHEAD = 32
# Bytes of a cache line.
_LINE = 64
# Bytes of the widest store that every x86-64 (SSE2) and ARM (NEON) has.
_WORD = 16
# Stores past the caches were measured to gain from this many bytes of a row on.
_NARROW = 128
# They are used from this many bytes of output on. Readers find smaller outputs in the cache.
_MANY = 1 << 22


@kernel
def stream_width(out, row_bytes):
    """Bytes of each store past the caches; 0 if there are few rows, or they are not aligned."""
    if len(out) < _MANY or row_bytes < _NARROW:
        return 0
    # A power of 2 divides both numbers if it divides their bitwise or.
    address = out.ctypes.data | row_bytes
    if address % _LINE == 0:
        return _LINE
    if address % _WORD == 0:
        return _WORD
    return 0


@kernel
def copy_row(out, to, rows, start, row_bytes, width):
    """Copy one row; narrow ones (labels, masks) without a call.

    ``width`` is that of :func:`stream_width`, or 0.
    """
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
    elif _WORD <= row_bytes <= 2 * _WORD:
        # Two words, of which the last covers a part of the first where the row has not two.
        last = row_bytes - _WORD
        copy_bytes(out, to, rows, start, 16)
        copy_bytes(out, to + last, rows, start + last, 16)
    elif 8 < row_bytes < _WORD:
        last = row_bytes - 8
        copy_bytes(out, to, rows, start, 8)
        copy_bytes(out, to + last, rows, start + last, 8)
    else:
        copy_bytes(out, to, rows, start, row_bytes)


@kernel
def prefetch_run(array, start, count, line):
    """Prefetch a run of elements, of which ``line`` fill a cache line."""
    # Rows of more than two lines would displace the rest of the innermost cache.
    if count <= 2 * line:
        for offset in range(0, count, line):
            prefetch(array, start + offset)
    else:
        for offset in range(0, count, line):
            prefetch_outer(array, start + offset)
    # A run that begins within a line may extend into one more. A run of a quarter line seldom does.
    if 4 * count > line:
        prefetch(array, start + count - 1)


@kernel
def located(table, limit, row):
    """Place of a row among the ``limit`` rows of the source; -1 if the row is out of range."""
    if table is None:
        place = np.int64(row)
    else:
        if row < 0 or row >= len(table):
            return np.int64(-1)
        place = np.int64(table[row])
    return place if 0 <= place < limit else np.int64(-1)


@kernel
def count_rows(table, limit):
    """Number of rows: the table's length, or ``limit`` if there is no table."""
    return limit if table is None else len(table)


@kernel
def aimed(table, row):
    """Place of a row, to prefetch it; any place if it is out of range, which the read refuses."""
    if table is None:
        return np.int64(row)
    if row < 0 or row >= len(table):
        return np.int64(0)
    return np.int64(table[row])


@kernel
def prefetch_entry(table, row):
    """Prefetch a row's entry of the table; the row may be out of range."""
    if table is not None:
        prefetch(table, row)


@kernel
def gather(rows, stride, row_bytes, limit, table, ids, out):
    """Copy row ``ids[i]`` to place ``i``; returns the position of a bad id, or -1."""
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
    """:func:`gather` from several sources, each with its ids.

    Each of ``fields`` is::

        address of the rows | stride | row_bytes | limit | address of the output
        address of the ids | number of ids

    ``like`` is any array of uint8, ``like_ids`` any array of the ids' dtype. Returns the field and
    the position of a bad id, or -1 and -1.
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
    """The cache's slot of a row, or -1; ``row`` may be out of range."""
    # Fields with fewer cached rows share the table: for them larger slots mean not cached.
    if row < 0 or row >= len(slots):
        return np.int64(-1)
    slot = np.int64(slots[row])
    return slot if slot < num_cached else np.int64(-1)


@kernel
def publish(slots, ids, places):
    """Set ``slots[ids[i]]`` to ``places[i]`` after the rows were written there."""
    # Readers take no lock. The release store keeps processors, above all ARM's, from showing them
    # a slot before its row.
    for i in range(len(ids)):
        store_release(slots, np.int64(ids[i]), places[i])


@kernel
def gather_part(
    cached, num_cached, slots, rows, stride, row_bytes, limit, table, ids, stop, out, width
):
    """Gather the first ``stop`` rows of :func:`gather_cached`.

    Returns the number of hits, or -1 - position of a bad id.
    """
    count = len(ids)
    hits = 0
    for i in range(stop):
        if i + 2 * _ROWS_AHEAD < count:
            prefetch(slots, np.int64(ids[i + 2 * _ROWS_AHEAD]))
            # Not by prefetch_entry, see the module's text.
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
        # Checked before the cache's table is read, which is shared and may be longer.
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
    """:func:`gather`, from ``cached`` where possible.

    ``hits[k]`` becomes the number of hits among ``ids[ends[k - 1]:ends[k]]``.
    """
    # A call for each part, whose loop begins at 0, costs nothing: 100,000 rows of 4 bytes take 0.83
    # ms, as without parts. Loops from one end to the next, or one loop that looks for the next end,
    # took 0.95. For rows of 512 bytes all take 2.3.
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
    """Divide ids into hits and misses, with their places.

    Returns the number of hits, or -1 - position of a bad id.
    """
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
    """Write the ids that are not cached to ``misses``, and return their number."""
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
    """Of ``samples`` evenly spaced ids, count those neither cached nor on a page in memory."""
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
    """Write the cache's slot of each row, else -1, and its place among rows read ahead, else 0.

    Returns the number of rows that are in neither.
    """
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
    """Copy rows that an earlier group of batches has read.

    The places of the others are written to ``missing``. Returns their number.
    """
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
        # Rows on disk are usually wide, so 16 ahead is enough.
        if i + 16 < len(ids):
            prefetch_run(source, ids[i + 16] * stride, row_bytes, _LINE)
        copy_row(rows, places[i] * row_bytes, source, ids[i] * stride, row_bytes, 0)


# -- kernels that round rows to fewer bytes, or widen them -----------------------------------------

# Measured with 1 M rows on one thread, in ns a row of float32:
#
#     bytes of a row               64   128   512
#     all in a float32 cache        9    10    36
#     all in a float16 cache       12    13    34
#     all in a bfloat16 cache      11    12    29
#     all missed                    8     9    35
#     all missed, rounded          13    17    34

# Rounded rows of up to this many bytes are prefetched 32 ahead, wider ones 16 ahead.
_NARROW_ROUNDED = 128


@kernel
def gather_narrow(rows, stride, limit, table, ids, form, out, width, head, worst):
    """``gather`` of float32 bits into rows of fewer bytes; see gather_wide for the arguments."""
    count = len(ids)
    ahead = 32 if 4 * width <= _NARROW_ROUNDED else 16
    for i in range(count):
        if i + 2 * ahead < count:
            prefetch_entry(table, np.int64(ids[i + 2 * ahead]))
        if i + ahead < count:
            prefetch_run(rows, aimed(table, np.int64(ids[i + ahead])) * stride, width, _LINE // 4)
        row = located(table, limit, np.int64(ids[i]))
        if row < 0:
            return i
        first = np.uint64(row * stride)
        top = largest(rows, first, width, form)
        worst[0] = max(worst[0], top)
        narrow_run(rows, first, out, np.uint64(i * (width + head)), width, form, top)
    return -1


@kernel
def gather_wide_part(
    cached, num_cached, slots, rows, stride, limit, table, ids, stop, form, out, width, head, worst
):
    """Gather the first ``stop`` rows of :func:`gather_wide`.

    Returns the number of hits, or -1 - position of a bad id.
    """
    count = len(ids)
    ahead = 32 if 4 * width <= _NARROW_ROUNDED else 16
    is_wide = rows.itemsize == 4  # known when this is compiled
    length = width if is_wide else width + head
    hits = 0
    for i in range(stop):
        if i + 2 * ahead < count:
            prefetch(slots, np.int64(ids[i + 2 * ahead]))
            prefetch_entry(table, np.int64(ids[i + 2 * ahead]))
        if i + ahead < count:
            row = np.int64(ids[i + ahead])
            slot = find_slot(slots, num_cached, row)
            if slot >= 0:
                prefetch_run(cached, slot * (width + head), width + head, _LINE // cached.itemsize)
            else:
                prefetch_run(rows, aimed(table, row) * stride, length, _LINE // rows.itemsize)
        slot = find_slot(slots, num_cached, np.int64(ids[i]))
        to = np.uint64(i * width)
        if slot >= 0:
            widen_run(cached, np.uint64(slot * (width + head)), out, to, width, form)
            hits += 1
            continue
        row = located(table, limit, np.int64(ids[i]))
        if row < 0:
            return -1 - i
        first = np.uint64(row * stride)
        if is_wide:
            top = largest(rows, first, width, form)
            worst[0] = max(worst[0], top)
            if head:
                round_levels(rows, first, out, to, width, scale_for(top))
            else:
                round_run(rows, first, out, to, width, form)
        else:
            widen_run(rows, first, out, to, width, form)
    return hits


@kernel
def gather_wide(
    cached,
    num_cached,
    slots,
    rows,
    stride,
    limit,
    table,
    ids,
    ends,
    form,
    out,
    width,
    head,
    hits,
    worst,
):
    """``gather_cached`` into float32 bits, from a cache with rows in fewer bytes.

    ``rows`` are in the cache's form, or float32 bits, which are rounded to it. ``stride`` counts
    elements of ``rows``, ``width`` the values of a row, and ``head`` the elements before the values
    of a stored row. ``worst[0]`` becomes the largest rounded magnitude, as bits; see ``largest``.
    """
    # Rows are rounded while they are copied, since reading ``out`` back would wait for the stores.
    begin = 0
    for part in range(len(ends)):
        found = gather_wide_part(
            cached,
            num_cached,
            slots,
            rows,
            stride,
            limit,
            table,
            ids[begin:],
            ends[part] - begin,
            form,
            out[begin * width :],
            width,
            head,
            worst,
        )
        if found < 0:
            return begin - 1 - found
        hits[part] = found
        begin = ends[part]
    return -1
