"""Tuning constants: every threshold of the scheduler, the code generator, conversions and the runtime, in one table.

Each line gives the meaning, the unit and the measurement behind a value: a benchmark of ``benchmarks/`` (``bench_*``),
``kernel_counts``, or an accuracy test. After changing a value, run ``make bench-check`` with the benchmark that the line names.
"""


# -- Rows and vectors (schedule/vector.py, walks.py, facts.py)

FOUR_SUMS_ROW = 3.0  # nonzeros per row from which four scalar sums at once pay; bench_spmv, rows of 1 to 50 nonzeros
SEVERAL_SUMS_ROW = 8.0  # nonzeros per row from which several vector sums at once pay; bench_spmm, 16 to 256 columns
GATHER_ROW = 4.0  # nonzeros per row of even lengths from which a gathered group of positions pays; bench_spmv
GATHERED_POSITIONS = 4  # positions gathered at once in short rows; bench_spmv
MASKED_REGISTER = 80.0  # nonzeros per row from which gathering a whole masked register pays in even rows; benchmarks.families, SpMV
MASKED_REGISTER_UNEVEN = 32.0  # the same in uneven rows, whose ends are mispredicted; benchmarks.families, ego-Twitter
DOT_PRODUCTS = 4  # neighbouring dot products that one intrinsic reduces together; bench_sddmm
SUMS_IN_FLIGHT = 8  # independent sums that hide the latency of a fused multiply-add (4 cycles, 2 per cycle)
ACCUMULATORS = 8  # registers that a tile may fill, at most; the other registers hold factors; bench_spmm
SHORT_RUN = 4.0  # positions per run of equal coordinates up to which sums visit each position; benchmarks.families, MTTKRP
TILE_PASS = 1  # cost of one more pass over a row's nonzeros, in registers of a tile; bench_spmm and SpMM with 72 to 300 columns
LONGEST_SUM_TILE = 16  # registers of a tile that is summed up; bench_sddmm, up to 256 columns
FLAT_SUM_STEPS = 4  # steps of a loop over all entries from which more registers per step pay; bench_sums

# -- Costs of loop orders, in steps of a walked loop (schedule/cost.py, loop_order.py)

COST_WALK = 2.0  # a step along a sparse level: loads a coordinate and mispredicts the end; bench_spmv
COST_SCATTER = 2.0  # a step that loads and stores its result, compared to a result in a register; bench_formats, CSC
COST_VECTOR_SCATTER = 4.0  # the same for a vector register of results; bench_formats, CSC
COST_STRIDED = 2.0  # an innermost dense loop that strides through memory; bench_tensors
FEW_LOOPS = 6  # most loops whose orders are all priced; below 0.1 s
FIRST_ORDERS = 50  # orders among which a local search looks for one more start; 0.02 s for 11 loops
SEARCHED_ORDERS = 200  # priced orders from which a local search does not start again; below 0.5 s for 12 loops
COST_MERGE = 3.0  # one step of a co-iteration; bench_masked
REORDERED_READS = 1.5  # average reads of a value above which it is gathered first: uneven rows are read far more often; triangles
SEEK = 8.0  # co-iteration steps from which one search pays; measured as 4 to 6 for rows of 3 to 50 entries
COST_TRANSPOSE = 4.0  # a stored value that moves to another mode order, cached with the pattern; bench_convert
COST_PLACE = 2.0  # an entry that is counted and placed in a result with another storage order; bench_spgemm
LISTED_ROWS = 4  # rows per entry from which a format lists the nonempty rows; bench_formats, DCSR
COST_FAR = 2.0  # a value read at random, for each doubling of its tensor beyond a core's cache; SpMV and SpMM of CSC
COST_INEXACT = 8.0  # factor of a nest that scatters inaccurate sums of too many terms; tests/codegen/test_long_sums.py
COST_SERIAL = 1.5  # factor of a nest whose outermost loop scatters and cannot run in parallel; bench_formats, 2 threads
COST_ALONE = 2.0  # factor of a nest whose outermost loop has one step, which threads cannot share

# -- Parallel loops and sums in blocks (schedule/, codegen/long_sums.py, runtime/blocks.py)

PARALLEL_STEPS = 1 << 13  # steps of the innermost loop from which several workers pay; bench_overhead, 2 threads
PLACED_STEPS = 16  # multiples of PARALLEL_STEPS from which they pay for placed entries; benchmarks.everyday conversions, 2 threads
APPENDED_STEPS = 4  # the same for entries that workers append below a bound and then move; benchmarks.families A + B, 2 threads
STEPS_OF_A_GATHER = 2  # gathered values that take as long as one plain step; bench_spmv
SERIAL_CALLS = 8  # calls for one pattern after which workers share a loop that scatters; splitting its rows takes as long; SpMV, CSC
SHARED_COORDINATES = 8  # coordinates from which a shared loop is worth cutting into blocks
LONG_SCATTERED_SUM = 256.0  # terms of a scattered sum from which it runs in blocks; tests/codegen/test_long_sums.py
SCATTERED_BLOCK = 64.0  # terms per sum and block; adding them takes about 30 times as long as moving the sums
UNEVEN_SUMS = 4.0  # multiples of the average length from which the longest sum sets the number of blocks
FEWEST_BLOCKS = 2  # blocks of a loop, at least
SHORT_LOOP = 4.0  # steps of a loop from which it is cut into blocks
COARSE_LOOP = 8.0  # blocks per step of a loop from which an inner loop is cut as well
TERMS_PER_MOVE = 16.0  # terms per place between two moves of scattered sums, at least
LONG_COLUMN = 4096.0  # terms of one sum from which it is summed in a wider type, or an operand is converted, if blocks cost more
BLOCK_OF_LONGEST = 256.0  # terms of the longest sum left in one block from which blocks are too inaccurate
SUM_BLOCK = 64  # terms in one register before it is added to another; tests/codegen/test_long_sums.py
FEWEST_SUM_BLOCKS = 4  # blocks of a long sum, at least; shorter sums are exact enough
NESTED_SUM = SUM_BLOCK // 2  # terms of a loop inside a summed loop from which it adds them in a separate register
BLOCKS = 64  # blocks of a parallel loop: enough to balance threads, at negligible cost; bench_spmm, power laws
ROW_COST = 2  # fixed cost of a row, in nonzeros; bench_spmv

# -- Caches and layouts (schedule/tiles.py, unroll_and_jam.py, specialize_table.py, workspace.py, frontend/problem.py, relayout.py,
# runtime/pieces.py)

TILE_REUSE = 20.0  # uses of each value from which walking the sparse operands again for each tile pays; bench_spmm, 10 % dense
TILED_SHARE = 2  # an operand larger than the last cache divided by this is tiled
TILE_SHARE = 4  # a tile fills at most the last cache divided by this
TILE_ROW = 512  # bytes of a row in a tile, at least: shorter ones cost more per row than the cache gains
JAMMED_GROUPS = 4  # groups of jammed coordinates in a tile, at least
PLACES_AHEAD = 64  # entries between the prefetch of a value in another order and its use; SpMM of CSC
FAR_VALUES = 4  # multiples of a core's cache from which values in another order are prefetched; SpMM of CSC
ROWS_AHEAD = 8  # positions between a prefetch of a row and the loop that reads it; bench_spgemm, rows by list in benchmarks.everyday
NEAREST_CACHE = 32 << 10  # bytes of the nearest cache; bench_structured
JAM_GAIN = 1.2  # factor by which jamming must reduce the loads per multiplication; bench_linear
GATHERED_LANES = 4  # columns of n:m:g that are gathered into a register, at least; benchmarks.families, one token
TABLE_TILE = 24 << 10  # bytes of a tile of n:m:g that stays in the nearest cache; bench_structured
PANEL_GROUP = 512  # coordinates of panels that are copied at a time, so that the copies stay in the last cache; bench_structured
DENSE_ROW = 1 << 18  # extent from which the dense arrays of a workspace exceed a core's cache; bench_spgemm
CLEARED_PLACES = 8.0  # places per sum up to which clearing a dense row is faster than listing its entries; bench_sums
SCATTERED_LINES = 1 << 13  # cache lines among SAMPLED_ENTRIES entries from which they are written in two passes; benchmarks.building
SCATTERED_COLUMNS = 1 << 19  # extent from which entries that are in order by rows are written by columns in two passes; bench_convert
SAMPLED_ENTRIES = 1 << 16  # consecutive entries whose places are sampled
RANKED_INSERTIONS = 64.0  # insertions into a row up to which sorting them beats dense arrays and hashing; benchmarks.building
LONGEST_SORTED_ROW = 1 << 15  # insertions into the longest row up to which rows are sorted; every thread needs memory for them
REUSED_PLACES = 8.0  # sums per place from which dense arrays pay; bench_spgemm
SCATTERED_MERGES = 1.5  # merges of one row from which scattering it into a dense array pays; bench_masked, triangle counts
SCATTERED_EXTENT = 1 << 22  # extent from which the dense array costs too much
MERGED_ROW = 6.0  # coordinates per row from which a merge loads the next coordinate ahead; bench_sums, A + B
COST_MOVE = 1.0  # cost of moving one value to another layout, in steps of a loop; bench_linear
COST_COPY = 1e4  # fixed cost of a copy, in steps of a loop; bench_overhead
PADDED_ROW = 16  # cache lines per row from which rows are padded, so that they do not share cache sets; bench_linear
SHORT_SUM = 2  # registers from which sums are as fast as in a copied layout; bench_linear
SLAB = 256  # coordinates of a slab; smaller slabs reread the sparse operand; bench_linear, batches of thousands

# -- Expressions and results (frontend/contraction.py, problem.py, runtime/pieces.py, result_arrays.py, assembling_binder.py)

PATH_GAIN = 0.5  # a contraction path is taken below this share of the cost of one nest; bench_tensors, MTTKRP
COST_STORED = 2.0  # cost of writing and reading one value of a temporary, in steps of a nest; bench_tensors
FULL_RESULT = 0.3  # estimated density from which format="auto" makes a result dense; bench_spgemm
ROW_PARTS = 64  # a part of a long row has 1 / ROW_PARTS of all entries; bench_skew
MOST_COUNTS = 1 << 22  # total counts of all parents and workers; scanning more costs more than a worker saves; bench_convert
SPARE_PART = 8  # a result may leave 1 / SPARE_PART of its pooled memory unused instead of being copied; as size classes do
WIDE_NUMBERS = 4  # multiples of the entry count above which the entries' numbers are made consecutive

# -- Conversions (convert/*.py)

# cumulative entry count from which compiling a conversion kernel pays off (n kernels: n**2 times as many), and entries of one
# unordered list from which kernels sort it faster than NumPy; bench_convert
COMPILE_ENTRIES = 1 << 16
SORTED_ENTRIES = 1 << 14  # entries up to which sorting their numbers is at least as fast as a kernel; benchmarks.everyday conversions
COALESCED_ENTRIES = 1 << 12  # entries up to which torch coalesces a COO tensor faster; bench_convert
COMPILE_VALUES = 1 << 20  # cumulative values of dense tensors from which a kernel reads their nonzeros; bench_convert
COUNTED_COORDINATES = 4  # coordinates per entry up to which a count is kept for every coordinate; bench_convert
SELECTED_ENTRIES = 1 << 14  # entries of selected rows from which a kernel is faster than NumPy; rows by list in benchmarks.everyday
RADIX_SORTED = 1 << 18  # entries, times coordinates squared, up to which radix sorts beat sorted keys; benchmarks.everyday conversions
SORTED_KEYS = 1 << 10  # keys of rows that are sorted at once, in the cache; columns by list in benchmarks.everyday
SEARCHED_ROWS = 32  # entries per row from which row starts are searched for instead of counted; bench_convert
LISTED_VALUES = 1 << 17  # values of a dense tensor up to which NumPy lists its nonzeros faster than a kernel; bench_convert
SEARCHED_VALUES = 1 << 20  # values: dense masks that broadcast to more are listed before they are expanded; benchmarks/sweep.py
CHOICE_VALUES = 1 << 18  # values of a dense matrix from which torch chooses entries of each row at once; topk, 57 million entries
PADDED_LISTS = 1 << 20  # entries below which rows of more different lengths are chosen from together; benchmarks.families, top-n
FEW_USES = 4  # uses of a new graph in which layers sum along its edges, instead of making a matrix; benchmarks.everyday graphs
FEW_MESSAGES = 1 << 18  # edges times channels up to which they do; benchmarks.everyday graphs

# -- Statistics of patterns (tensors/pattern.py)

MEASURED_ENTRIES = 1 << 12  # entries from which rows and coordinates are sampled, which takes about 0.1 ms; benchmarks.new_sizes
ROW_SAMPLES = 1 << 9  # positions sampled for lengths of rows, at least; at most twice as many
LONG_ROW_ENTRIES = 1 << 16  # entries of a matrix from which one long row matters; bench_skew
LONG_ROW_SHARE = 16  # a row is long if it holds more than this part of all entries; bench_skew
PEAK_STEP = 32  # minimum positions per sample
MOST_PEAK_STEP = 256  # positions per sample of large patterns: columns of LONG_COLUMN values are still seen
PEAK_SAMPLES = 1 << 12  # samples from which the number of positions per sample grows instead
PEAK_HITS = 16  # samples of one coordinate from which it is frequent

# -- Code (codegen/*.py): limits of unrolled code

MOST_CASES = 3  # most merge lattice points with a loop and a case for each: the number for two operands
SHARED_REGISTERS = 4  # shared registers loaded at once; more would leave too few registers for the sums
TRANSPOSED_SQUARES = 2  # adjacent squares of registers per step, which read whole cache lines; bench_linear
MOST_IFS = 8  # copies up to which the rest of a row is handled without a loop; SpMM with 8 columns, ca-CondMat
MOST_COPIES = 160  # copies of a body, at most: more take long to compile
PREFETCHED_LINE = 64  # bytes that one prefetch loads: a cache line of most processors; bench_structured
