"""Triton kernels that gather a batch's rows: hits from device memory, misses from reachable memory.

The cost of a row of 512 bytes that is aligned to lines of 128 bytes:

- The look-up reads 8 bytes of the ids, in order, and one sector of 32 bytes of the slots, of which
  4 are needed. Each warp looks up four rows, so that their latencies overlap.
- A hit is 512 bytes, read in one instruction of a warp with 16 bytes a lane: 4 requests of a line.
- A miss is the same 4 requests, which cross the bus as reads of 128 bytes, the largest possible.
- Both write 512 bytes, 4 lines.

A program has tiles of up to 8 KiB of rows, and requests all of a tile before it writes any. Host
rows often begin in the middle of a line: torch's large tensors 64 bytes after a page, and rows of
400 bytes anywhere. Then each quarter of a warp would read across two lines, in twice as many
requests of half the size. So missed rows are rotated within their tile until each quarter reads
within one line. The quarter with a row's begin, an incomplete line, also has its end.
"""

import triton
import triton.language as tl


@triton.jit
def _rotated(
    word,
    rows,
    source,
    missed,
    STRIDE: tl.constexpr,
    LEAD: tl.constexpr,
    LINE: tl.constexpr,
    TOTAL: tl.constexpr,
):
    """The words of missed rows, each row rotated within its ``TOTAL`` words by its distance from
    the begin of a line; see :func:`gather_rows`."""
    turn = (source * STRIDE + LEAD) % LINE
    turn = tl.where(missed, turn, 0).to(tl.int32)
    word = (word + (TOTAL - turn)[:, None]) % TOTAL
    # Words that a lane reads at once, 16 bytes.
    GROUP: tl.constexpr = 128 // rows.dtype.element_ty.primitive_bitwidth
    if STRIDE % GROUP == 0 and LEAD % GROUP == 0 and TOTAL % GROUP == 0:
        # Triton 3.9 does not find this out itself.
        word = tl.max_contiguous(tl.multiple_of(word, [1, GROUP]), [1, GROUP])
    return word


@triton.jit
def _scales(
    far,
    missed,
    near,
    hit,
    HEAD: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """The scales of int8 rows, float32; ``far`` and ``near`` are their addresses in ``rows`` and in
    the cache. Read byte by byte, since rows of 4 + d bytes are not aligned."""
    bits = tl.zeros([BLOCK_ROWS], dtype=tl.int32)
    for k in range(HEAD):
        part = tl.zeros([BLOCK_ROWS], dtype=tl.int32)
        if HAS_ROWS:
            part = tl.load(far + k, mask=missed, other=0).to(tl.int32)
        if HAS_CACHE:
            part += tl.load(near + k, mask=hit, other=0).to(tl.int32)
        bits |= part << (8 * k)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _end_of(part: tl.constexpr, end0, end1, end2, end3, end4, end5, end6, end7):
    """The end of a part of the ids."""
    # With one return: ends from 2**31 on are int64, others int32, and Triton refuses returns of two
    # types.
    if part == 0:
        end = end0
    elif part == 1:
        end = end1
    elif part == 2:
        end = end2
    elif part == 3:
        end = end3
    elif part == 4:
        end = end4
    elif part == 5:
        end = end5
    elif part == 6:
        end = end6
    else:
        end = end7
    return end


@triton.jit(
    do_not_specialize=["count", "num_rows", "num_cached", "limit", "begin"]
    + [f"end{part}" for part in range(8)]
)
def gather_rows(
    ids,
    count,
    num_rows,
    slots,
    num_cached,
    cached,
    rows,
    table,
    limit,
    out,
    hits,
    order,
    begin,
    end0,
    end1,
    end2,
    end3,
    end4,
    end5,
    end6,
    end7,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    LINE: tl.constexpr,
    LEAD: tl.constexpr,
    HEAD: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    LEAVE: tl.constexpr,
    BRAIN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Write row ``ids[i]`` to place ``i`` of ``out``.

    Args:
        ids: int32 or int64, shape ``(count,)``.
        count: Number of ids.
        num_rows: Ids are below it; others have no row.
        slots: int32, shape ``(num_rows,)``: slots in the cache. Those outside ``[0, num_cached)``
            mean not cached.
        num_cached: Number of cached rows.
        cached: Words of the cached rows, row by row. For rows in fewer bytes float16, the bits of
            bfloat16 as int16, or bytes of int8 rows.
        rows: Words of all rows, of the same kind.
        table: int32 or int64, shape ``(num_rows,)``: the place of each row in ``rows``.
        limit: Number of ``rows``.
        out: Words, row by row.
        hits: int64, shape ``(PARTS,)``: the hits of each part are added.
        order: int64, shape ``(count,)``: the order in which the places are served.
        begin: Begin of the first part of the ids.
        end0 ... end7: Ends of the parts; numbers, since a tensor would have to be sent first.
        PARTS: Number of parts; 0 to count nothing.
        WIDTH: Words of a row of ``out``.
        STRIDE: Words from one of ``rows`` to the next.
        LINE: Words of a memory line, to which reads of ``rows`` are rotated; 1 for no rotation.
        LEAD: Words from a line's begin to the first value of ``rows``.
        HEAD: Bytes of an int8 row's scale, before its values; 0 if rows have none.
        HAS_CACHE: Whether ``slots`` and ``cached`` are given.
        HAS_ROWS: Whether ``rows`` and ``limit`` are given.
        HAS_TABLE: Whether ``table`` is given.
        HAS_ORDER: Whether ``order`` is given.
        LEAVE: Whether rows that are not found are left unchanged in ``out``; else they become 0.
        BRAIN: Whether words are bits of bfloat16.
        BLOCK_ROWS: Rows of a tile.
        BLOCK_WORDS: Words of a row in a tile.
        COLUMNS: Tiles across a row.
        STEPS: Tiles of each program, in turn.
    """
    for step in range(STEPS):
        tile = tl.program_id(0) + step * tl.num_programs(0)
        column = tile % COLUMNS
        place = (tile // COLUMNS).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        live = place < count
        if HAS_ORDER:
            place = tl.load(order + place, mask=live, other=0)
        row = tl.load(ids + place, mask=live, other=-1).to(tl.int64)
        known = (row >= 0) & (row < num_rows)
        hit = known & (row < 0)  # false everywhere, for HAS_CACHE=False
        slot = row
        if HAS_CACHE:
            slot = tl.load(slots + row, mask=known, other=-1).to(tl.int64)
            hit = known & (slot >= 0) & (slot < num_cached)
        missed = known & (hit == 0)
        source = row
        if HAS_TABLE:
            source = tl.load(table + row, mask=missed, other=-1).to(tl.int64)
        if HAS_ROWS:
            missed = missed & (source >= 0) & (source < limit)
        word = column * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)[None, :]
        if HAS_ROWS and LINE > 1:
            word = _rotated(word, rows, source, missed, STRIDE, LEAD, LINE, COLUMNS * BLOCK_WORDS)
        in_row = word < WIDTH
        # Two loads, each lane doing one of them. Triton 3.9 would not know the alignment of a
        # pointer that is selected by tl.where.
        if HAS_ROWS:
            found = missed
            value = tl.load(
                rows + ((source * STRIDE + HEAD)[:, None] + word),
                mask=missed[:, None] & in_row,
                other=0,
            )
        if HAS_CACHE:
            first = slot * (WIDTH + HEAD)
            near = tl.load(
                cached + ((first + HEAD)[:, None] + word), mask=hit[:, None] & in_row, other=0
            )
            if HAS_ROWS:
                found = hit | missed
                value = tl.where(hit[:, None], near, value)
            else:
                found = hit
                value = near
        written = found if LEAVE else live
        if BRAIN:  # the upper half of a float32
            value = ((value.to(tl.int32) & 0xFFFF) << 16).to(tl.float32, bitcast=True)
        if HEAD > 0:
            scale = _scales(
                rows + source * STRIDE,
                missed,
                cached + slot * (WIDTH + HEAD),
                hit,
                HEAD,
                HAS_ROWS,
                HAS_CACHE,
                BLOCK_ROWS,
            )
            value = value.to(tl.int8, bitcast=True).to(tl.float32) * scale[:, None]
        target = out + ((place * WIDTH)[:, None] + word)
        tl.store(target, value.to(out.dtype.element_ty), mask=written[:, None] & in_row)
        # At the end, so that nothing waits for it.
        low = begin
        for part in tl.static_range(PARTS):
            high = _end_of(part, end0, end1, end2, end3, end4, end5, end6, end7)
            served = tl.sum((hit & (place >= low) & (place < high)).to(tl.int32), axis=0)
            tl.atomic_add(
                hits + part, served.to(tl.int64), mask=(served > 0) & (column == 0), sem="relaxed"
            )
            low = high


@triton.jit(do_not_specialize=["offset", "capacity", "num_rows"])
def gather_placed(
    ids,
    state,
    ends,
    offset,
    capacity,
    num_rows,
    ADDRESSES: tl.constexpr,
    SLAB: tl.constexpr,
    COUNT: tl.constexpr,
    HITS: tl.constexpr,
    ENDS_STEP: tl.constexpr,
    IDS: tl.constexpr,
    ID: tl.constexpr,
    OUT_WORD: tl.constexpr,
    WORD: tl.constexpr,
    TABLE: tl.constexpr,
    CACHED_ALIGNED: tl.constexpr,
    FAR_ALIGNED: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    LINE: tl.constexpr,
    LEAD: tl.constexpr,
    HEAD: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    BRAIN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_WORDS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """``gather_rows`` for a launch that is recorded once.

    What changes from batch to batch is in ``state``, int64. From word ``ADDRESSES`` on it is::

        address of slots | num_cached | address of cached | address of rows
        address of table | limit

    Args:
        ids: int32 or int64; without padding.
        state: int64.
        ends: int64: ends of the parts, ``ENDS_STEP`` words apart.
        offset: Bytes from the address in word ``SLAB`` to the first row.
        capacity: Number of rows that fit there.
        num_rows: Ids are below it.
        ADDRESSES: First word of the layout above.
        SLAB: Word with the address of the memory to write to.
        COUNT: Word with the number of ids.
        HITS: First word of the hits.
        ENDS_STEP: Words from one end to the next.
        IDS: Bytes from the address in ``SLAB`` to padded ids, which are all read; -1 to read the
            first ``COUNT`` of ``ids``.
        ID: Type of the padded ids.
        OUT_WORD: Type of the words of ``out``.
        WORD: Type of the words of stored rows.
        TABLE: Type of ``table``.
        CACHED_ALIGNED: Whether the address of ``cached`` is a multiple of 16, which allows accesses
            of 16 bytes.
        FAR_ALIGNED: The same of ``rows``.
    """
    if IDS >= 0:
        ids = (tl.load(state + SLAB) + IDS).to(tl.pointer_type(ID))
        count = capacity
    else:
        count = tl.minimum(tl.load(state + COUNT), capacity)
    slots = tl.load(state + ADDRESSES).to(tl.pointer_type(tl.int32))
    num_cached = tl.load(state + (ADDRESSES + 1))
    cached = tl.load(state + (ADDRESSES + 2)).to(tl.pointer_type(WORD))
    if CACHED_ALIGNED:
        cached = tl.multiple_of(cached, 16)
    rows = tl.load(state + (ADDRESSES + 3)).to(tl.pointer_type(WORD))
    if FAR_ALIGNED:
        rows = tl.multiple_of(rows, 16)
    table = tl.load(state + (ADDRESSES + 4)).to(tl.pointer_type(TABLE))
    limit = tl.load(state + (ADDRESSES + 5))
    out = tl.multiple_of((tl.load(state + SLAB) + offset).to(tl.pointer_type(OUT_WORD)), 16)
    # Parts that do not exist get the first end; they are not counted.
    gather_rows(
        ids,
        count,
        num_rows,
        slots,
        num_cached,
        cached,
        rows,
        table,
        limit,
        out,
        state + HITS,
        ids,
        0,
        tl.load(ends),
        tl.load(ends + (ENDS_STEP if PARTS > 1 else 0)),
        tl.load(ends + (2 * ENDS_STEP if PARTS > 2 else 0)),
        tl.load(ends + (3 * ENDS_STEP if PARTS > 3 else 0)),
        tl.load(ends + (4 * ENDS_STEP if PARTS > 4 else 0)),
        tl.load(ends + (5 * ENDS_STEP if PARTS > 5 else 0)),
        tl.load(ends + (6 * ENDS_STEP if PARTS > 6 else 0)),
        tl.load(ends + (7 * ENDS_STEP if PARTS > 7 else 0)),
        PARTS,
        WIDTH,
        STRIDE,
        LINE,
        LEAD,
        HEAD,
        HAS_CACHE,
        HAS_ROWS,
        HAS_TABLE,
        False,
        False,
        BRAIN,
        BLOCK_ROWS,
        BLOCK_WORDS,
        COLUMNS,
        STEPS,
    )


@triton.jit(do_not_specialize=["offset", "capacity"])
def mark_padding(
    value,
    state,
    offset,
    capacity,
    SLAB: tl.constexpr,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write a value to the rows after the first ``COUNT``.

    Args:
        value: One number, in device memory.
        state: int64.
        offset: Bytes from the address in word ``SLAB`` to the first row.
        capacity: Number of rows with padding.
        SLAB: Word with the address of the memory to write to.
        COUNT: Word with the number of rows without padding.
        WIDTH: Numbers per row.
        BLOCK: Numbers per program.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rest = (place >= tl.load(state + COUNT) * WIDTH) & (place < capacity * WIDTH)
    out = (tl.load(state + SLAB) + offset).to(tl.pointer_type(value.dtype.element_ty))
    tl.store(out + place, tl.load(value), mask=rest)
