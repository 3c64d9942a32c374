"""Binder: writes the function that turns operands into kernel arguments, specialised to one plan.

The function is generated as source, so that a warm call runs straight through: it has no loop over operands, and no branch
on facts that the plan knows. An outer function ``bind`` takes the sizes of the operands: it computes what follows from them, checks
memory limits, and returns the function ``run`` of the operands. So one text serves all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from struct import Struct
from typing import Any

import numpy as np
import torch

from ..codegen.assembly import WORKSPACE, Param
from ..codegen.kernel import Kernel, PlainKernel
from ..codegen.long_sums import LEVELS, scattered
from ..codegen.workspaces import arrays_of, has_level, workspaces_of
from ..frontend.problem import Problem
from ..frontend.relayout import Relayout, spaced_with_last
from ..frontend.requests import NAMES, Operand, row_major
from ..ir import index as ix
from ..ir.derived_formats import flattened, realized
from ..ir.dtype import DTYPES
from ..ir.format import Format
from ..ir.functions import REDUCTIONS, start_of
from ..ir.lattice import make_lattice
from ..ir.symbolic import SIZES, Size, text_of
from ..ir.workspace_levels import Flagged, PackedWorkspace, Scattered
from ..machine import threads
from ..machine.buffer_pool import SMALLEST, room
from ..machine.memory import address, aligned, check_memory, check_parts, check_workspace, flat
from ..schedule import tuning
from ..schedule.scatter_blocks import in_memory, outer_of
from ..tensors.ledgers import note
from ..tensors.methods import METHODS
from ..tensors.sparse_tensor import SparseTensor
from .blocks import coordinate_cuts, cuts_of, is_repeated, longest_row, placed, placed_equally, shared_out, sharing_workers, split_rows

# From the sizes of the operands (``frontend.requests.with_sizes``) to a function from the operands to the result.
Bind = Callable[[Sequence[int]], Callable[..., Any]]
ALLOCATORS = {"list": "empty", "mark": "zeros", "seen": "zeros", "flag": "zeros", "table": "empty"}  # NumPy allocators

PADDING = 16  # places past the end of a row, even of an empty row, that a register may reach
PLACED = ("cuts", "split")  # arrays that are cached with a pattern
NO_CHANGES: Mapping[str, str] = {}
BINDS = "bind_"  # prefix of names in the scope that stand for functions of the sizes
BLOCK_ARRAYS = ("partial", "starts", "bounds")  # arrays with a part for each block
CALLED = (  # functions that generated code calls
    *(coordinate_cuts, cuts_of, is_repeated, placed, placed_equally, longest_row, shared_out, sharing_workers, split_rows),
    *(check_memory, check_parts, check_workspace, address, aligned, flat, note, room),
)


class Binder:
    """Writes and compiles the function of one plan."""

    def __init__(self, problem: Problem, stmt: ix.Stmt, kernel: Kernel, operands: Sequence[Operand], parallel: bool, is_part: bool = False):
        self.is_part = is_part  # whether the ledgers list no copies, because the request that has this part lists them
        self.parallel = parallel and kernel.source.program.parallel  # whether several workers may run
        self.problem, self.stmt, self.kernel, self.operands = problem, stmt, kernel, operands
        self.result, self.spaces, self.beside = problem.result, workspaces_of(stmt), ix.returned_by(stmt)
        self.accesses = {a.tensor.name: a for a in ix.operands_of(stmt)}
        self.strides, layout = problem.strides, problem.layout or Relayout("", {}, None)
        self.copied, self.last = layout.operands, layout.result  # the dimensions that copies of operands and of the result have last
        self.numbers: dict[str, str] = {}  # variables of ``bind``, by their text
        self.checks: list[str] = []  # lines of ``bind``
        self.scope: dict[str, Any] = {
            **{function.__name__: function for function in CALLED},
            "np": np,
            "inf": np.inf,
            "torch": torch,
            "trusted": SparseTensor.trusted,
            "converted": METHODS["converted"],
            "workers": threads.workers,
            "is_profiled": torch.autograd._profiler_enabled,  # type: ignore[attr-defined]
            "record_function": torch.autograd.profiler.record_function,
            "space": np.empty if not isinstance(kernel, PlainKernel) else _unwritten,
            "dtype": getattr(np, self.result.dtype),
            "stmt": problem.stmt,
        }

    def number(self, size: int) -> str:
        """Expression for a size: a variable of ``bind``, or a literal for a plain number."""
        return self.fixed(size.text) if isinstance(size, Size) else str(size)

    def fixed(self, text: str) -> str:
        """The variable of ``bind`` with the value of an expression of the sizes."""
        return self.numbers.setdefault(text, f"z{len(self.numbers)}")

    def numbers_of(self, shape: Sequence[int]) -> str:
        """The variable of ``bind`` with a tuple of sizes."""
        return self.fixed(text_of(tuple(shape)))

    def function(self) -> Bind:
        """Compile ``bind`` from its source."""
        results = [
            self.result_expression() if self.last is None else "R",
            *(f"torch.from_numpy({access.tensor.name})" for access in self.beside),
        ]
        shapes = {access.tensor.name: [self.problem.extents[var] for var in access.indices] for access in self.beside}
        return self.compile_body(
            [
                *self.patterns(),
                *self.copies(),
                *self.memory_lines(),
                *([] if self.kernel.is_compiled else ["C = T.numpy()"]),
                *(f"{name} = np.empty({self.numbers_of(shape)}, dtype)" for name, shape in shapes.items()),
                *self.call(),
                *self.copy_of_result(),
                f"return {', '.join(results)}",
            ]
        )

    def compile_body(self, body: list[str]) -> Bind:
        """Compile ``bind``, whose function ``run`` of the operands has this body."""
        exec(compile(self.write(body), f"<binder of {self.kernel.source.name}>", "exec"), self.scope)
        return self.scope["bind"]

    def write(self, body: list[str]) -> str:
        """The source of ``bind``."""
        arguments = [*(f"o{at}" for at in range(len(self.operands))), "into=None"]
        fixed = [f"{name} = {text}" for text, name in self.numbers.items()]
        copies = [f"{name[len(BINDS) :]} = {name}({SIZES})" for name in self.scope if name.startswith(BINDS)]
        run = [f"def run({', '.join(arguments)}):", *(f"    {line}" for line in body), "return run"]
        return "\n".join([f"def bind({SIZES}):", *(f"    {line}" for line in [*fixed, *self.checks, *copies, *run])])

    @property
    def pieces(self) -> str:
        """Expression for the number of blocks of a parallel loop.

        If arrays have a part for each block, the number is the same for any number of threads, so that results are reproducible. Otherwise
        a single worker has one block, which needs no cuts from a pattern.
        """
        if not self.parallel:
            return "1"
        has_arrays = any(param.what in BLOCK_ARRAYS for param in self.kernel.source.params)
        return str(tuning.BLOCKS) if has_arrays else f"{tuning.BLOCKS} if n > 1 else 1"

    @property
    def blocks(self) -> int:
        """Upper bound on the number of blocks of the outermost loop."""
        return tuning.BLOCKS if self.parallel else 1

    def call(self) -> list[str]:
        """Lines that call the kernel, with one worker per thread if several workers pay."""
        count = [f"n = {self.most_workers()}" if self.parallel else "n = 1"]
        self.scope["run_kernel"] = self.kernel.run if self.kernel.is_compiled else None  # compiled now, not at the first call
        return [*count, *self.workspace_lines(), *self.call_lines("kernel", self.kernel, run="run_kernel")]

    def most_workers(self) -> str:
        """Expression for the number of workers."""
        split = next((param.of for param in self.kernel.source.params if param.what == "split"), None)
        return "workers()" if split is None else f"sharing_workers(P{NAMES.index(split)}, workers())"

    def call_lines(self, name: str, kernel: Kernel, instead: Mapping[str, str] = NO_CHANGES, run: str = "") -> list[str]:
        """Lines that call a kernel.

        ``instead`` maps parameters to other expressions. ``run`` names the function in the scope that calls the kernel, by default
        the kernel's method. Machine code takes 64-bit words: numbers, and addresses of arrays. Variables keep the arrays alive
        until the kernel returns.
        """
        arguments = [(param, instead.get(param.what) or self.argument(param, name)) for param in kernel.source.params]
        if not kernel.is_compiled:
            self.scope[f"plain_{name}"] = kernel.plain
            return [f"plain_{name}({', '.join(value for _, value in arguments)})"]
        self.scope[name] = kernel
        self.scope[f"pack_{name}"] = Struct(f"{len(arguments)}q").pack
        lines, words = [], []
        for at, (param, value) in enumerate(arguments):
            location = self.known_address(param) if param.what not in instead else None
            if param.is_array and location is None:
                is_cut = param.what in PLACED and param.what not in instead
                lines.append(f"{name}{at} = {self.placed_array(param) if is_cut else value}")
                location = f"{name}{at}[1]" if is_cut else f"address({name}{at})"
            words.append(location if param.is_array and location is not None else value)
        run = f"{run or f'{name}.run'}(pack_{name}({', '.join(words)}), n)"
        self.scope[f"title_{name}"] = f"numscorch: {kernel.source.text.partition(chr(10))[0][3:]}"  # with the statement
        return [*lines, "if is_profiled():", f"    with record_function(title_{name}): {run}", "else:", f"    {run}"]

    def known_address(self, param: Param) -> str | None:
        """Expression for an array's address that costs less than the address of a NumPy view; None for other arrays."""
        if param.of == self.result.name and not self.result.is_assembled:
            return "T.data_ptr()"
        if not param.of or param.of not in NAMES[: len(self.operands)]:
            return None
        at = NAMES.index(param.of)
        operand = self.operands[at]
        if param.what in PLACED:
            return None
        if param.what == "order":
            return f"M{at}.places.data_ptr()"
        if param.what != "vals":
            return f"p{at}_{self.view_number(param)}" if param.is_array else None
        if operand.format.is_dense:
            name = "X" if at in self.copied else "o"
            return f"{name}{at}.data_ptr()" if DTYPES[operand.dtype].kind != "complex" else None
        return f"a{at}"

    def workspace_lines(self) -> list[str]:
        """Lines that allocate the workspaces, with a part for each worker."""
        lines = []
        for space in self.spaces:
            name, size = space.tensor.name, self.room(space)
            lines += self.capacity_lines(space) if has_level(space.tensor, PackedWorkspace) else []
            lines += [f"{size} = longest_row(P{NAMES.index(space.tensor.shares)}) + {PADDING}"] if space.tensor.shares is not None else []
            level = space.tensor.format.levels[0]
            dtypes = {array: level.array_dtype(array) or "int64" for array in arrays_of(space)}
            lines += [f"{name}_{array} = np.{ALLOCATORS[array]}(n * {size}, np.{dtype})" for array, dtype in dtypes.items()]
            is_filled = has_level(space.tensor, Flagged, Scattered)
            lines += [f"{name}_vals = {self.initial_values(space, size) if is_filled else f'space(n * {size}, np.{space.tensor.dtype})'}"]
        used = {param.name: param for param in self.kernel.source.params if param.what == "parts"}
        for name, param in used.items():
            places = self.places(param.of)
            self.checks.append(f"check_parts({self.number(places)}, {DTYPES[param.dtype].itemsize}, stmt, {len(self.problem.shape)})")
            lines.append(f"{name} = space(n * {self.number(places)}, np.{param.dtype})")
        return lines

    def places(self, name: str) -> int:
        """Number of places that a worker needs for the sums of blocks in a scattering loop."""
        access, inner = scattered(self.stmt)[name]
        if not access.tensor.is_dense:
            return LEVELS * self.problem.extents[access.indices[0]]
        outer, order = outer_of(access, inner), in_memory(access)
        size = self.stride(access, outer[-1]) if outer else 1
        if order and not outer:
            size = self.problem.extents[access.indices[order[0]]] * self.stride(access, order[0])
        return LEVELS * size

    def stride(self, access: ix.Access, at: int) -> int:
        """Stride of a dense tensor in a dimension, in values."""
        return 1 if access.tensor.strides[at] == "1" else self.strides[access.tensor.name][at]

    def initial_values(self, space: ix.Access, size: str) -> str:
        """Expression for an array filled with the identity of the reduction, or with 0 if values are only stored."""
        added = next(a for a in ix.assignments(self.stmt) if a.lhs.tensor == space.tensor)
        start = start_of(added.op, added.rhs, space.tensor.dtype) if added.op in REDUCTIONS else 0
        dtype = f"np.{space.tensor.dtype}"
        return f"np.full(n * {size}, {start}, {dtype})" if start else f"np.zeros(n * {size}, {dtype})"

    def room(self, space: ix.Access) -> str:
        """Expression for the number of places in a workspace: the extent of its dimension, or a variable for packed rows."""
        if has_level(space.tensor, PackedWorkspace) or space.tensor.is_row:
            return f"{space.tensor.name}_size"
        size = self.number(self.problem.extents[space.indices[0]])
        self.checks.append(f"check_workspace(workers() * {size}, {size}, stmt, 'hash')")
        return size

    def capacity_lines(self, space: ix.Access) -> list[str]:
        """Lines that find the size of a workspace of packed rows."""
        raise NotImplementedError

    def patterns(self) -> list[str]:
        """Lines that set P0, P1, ... to the patterns of sparse operands in the kernel's formats, and V0, V1, ... to their arrays."""
        lines = []
        for at, operand in enumerate(self.operands):
            if operand.format.is_dense:
                continue
            lines.append(f"P{at} = o{at}.pattern")
            kernel_format = self.stored(NAMES[at])
            if kernel_format != operand.format:
                self.scope[f"F{at}"] = kernel_format
                lines += [f"M{at} = converted(P{at}, F{at})", f"P{at} = M{at}.pattern"]
            if self.accesses[NAMES[at]].tensor.shares is None:
                lines += self.views(at, sum(len(level.arrays) for level in kernel_format.levels))
            is_read = any(param.what == "vals" and param.of == NAMES[at] for param in self.kernel.source.params)
            if self.kernel.is_compiled and is_read:
                lines += [f"v{at} = o{at}._values", f"a{at} = v{at}.data_ptr()", f"if a{at} != o{at}._address: o{at}.locate()"]
                lines += [] if self.reads_values(at) else [f"v{at} = M{at}.tensor(v{at}.detach())", f"a{at} = v{at}.data_ptr()"]
        return lines

    def stored(self, name: str) -> Format:
        """The format in which the kernel reads an operand."""
        base = self.problem.stored[name]
        flat = self.accesses[self.accesses[name].tensor.shares or name].tensor.format
        return base if flat == flattened(base) else realized(flat, base)

    def reads_values(self, at: int) -> bool:
        """Whether the kernel reads the values of a sparse operand where they are stored, in the order of its format or in another one."""
        return self.accesses[NAMES[at]].tensor.is_reordered or self.stored(NAMES[at]) == self.operands[at].format

    def views(self, at: int, arrays: int) -> list[str]:
        """Lines that set V0, V1, ... to index arrays and p0_0, ... to their addresses: ``Pattern.views`` unrolled, in half the time."""
        if not arrays:
            return []
        unpacked = "".join(f"(t{at}_{n}, p{at}_{n}), " for n in range(arrays)) + f"= P{at}.watched"
        moved = " or ".join(f"t{at}_{n}.data_ptr() != p{at}_{n}" for n in range(arrays))
        if not self.kernel.is_compiled:
            return [unpacked, f"V{at} = P{at}.take_views() if {moved} else P{at}.taken"]
        return [unpacked, f"if {moved}:", f"    P{at}.take_views()", f"    {unpacked}"]

    def copies(self) -> list[str]:
        """Lines that copy dense operands to the kernel's layout: X0, X1, ..."""
        lines = []
        for at, last in self.copied.items():
            operand = self.operands[at]
            size = self.number(prod(spaced_with_last(operand.shape, last)))
            lines += [*self.noted(operand.shape, operand.dtype), f"X{at} = aligned({size}, torch.{operand.dtype})", f"L{at}(o{at}, X{at})"]
        return lines

    def noted(self, shape: Sequence[int], dtype: str) -> list[str]:
        """Lines that add the copy of a dense tensor to the ledgers."""
        size = self.number(prod(shape) * DTYPES[dtype].itemsize)
        return [] if self.is_part else [f"note('copy', 'a dense tensor with another dimension contiguous', {size})"]

    def memory_lines(self) -> list[str]:
        """Lines that set T to memory for the result: to ``into`` if it is given and the kernel can write there."""
        memory = self.memory()
        if not self.result.is_dense or self.last is not None or self.problem.rows is not None:
            return [f"T = {memory}"]
        filled = [f"    into.fill_({self.fill()})"] if self.kernel.source.program.zeroed else []
        return ["if into is None:", f"    T = {memory}", "else:", *filled, "    T = into"]

    def memory(self) -> str:
        """Expression for new memory for the result, filled with zeros if the kernel may skip entries."""
        zeroed, fill = self.kernel.source.program.zeroed, self.fill()
        if self.result.shares is not None:
            size, is_large = f"P{self.shared}.counts[-1]", self.is_large(self.operands[self.shared].counts[-1:])
        else:
            self.checks.append(f"check_memory({self.numbers_of(self.problem.shape)}, {self.result.type.itemsize}, stmt)")
            shape = self.problem.shape if self.last is None else spaced_with_last(self.problem.shape, self.last)
            if self.problem.rows is not None:
                shape = (self.problem.rows, *shape[self._first_long_dimension(shape) + 1 :])
            size, is_large = self.numbers_of(shape), self.is_large(shape)
        if zeroed and fill:
            return f"torch.from_numpy(np.full({size}, {fill}, dtype))"
        if self.last is not None:
            return f"aligned({self.number(prod(shape))}, torch.{self.result.dtype}, {zeroed})"
        gaps = self.result.shares is not None and self.problem.format.has_gaps
        return f"torch.from_numpy({'np.zeros' if zeroed or gaps else 'room' if is_large else 'np.empty'}({size}, dtype))"

    def is_large(self, shape: Sequence[int]) -> bool:
        """Whether a result is large enough for pooled memory."""
        return prod(shape) * self.result.type.itemsize >= SMALLEST

    def fill(self) -> float:
        """The value of places that the kernel does not visit; the identity if a reduced dimension has size 0."""
        stmt, extents = self.problem.stmt, self.problem.extents
        reduced = set(ix.variables_in(stmt.rhs)) - set(stmt.lhs.indices)
        if stmt.op in REDUCTIONS and any(extents[var] == 0 for var in reduced):
            return start_of(stmt.op, stmt.rhs, stmt.lhs.tensor.dtype)
        return self.kernel.source.program.fill

    @property
    def shared(self) -> int:
        """The number of the operand whose pattern the result keeps."""
        return NAMES.index(self.result.shares or "")

    def argument(self, param: Param, stage: str = "kernel") -> str:
        """The expression for one parameter of a stage's kernel."""
        match param.what:
            case "vals":
                return self.values(param.of)
            case "order":
                return f"M{NAMES.index(param.of)}.places.numpy()"
            case what if what in PLACED:
                return f"{self.placed_array(param)}[0]"
            case "partial":
                return f"np.empty({self.blocks}, dtype)"
            case "blocks":
                return self.pieces
            case "workers":
                return "n"
            case what if what in WORKSPACE or what in ("longest", "parts"):
                return param.name
            case "places":
                return self.number(self.places(param.of))
            case "size":
                return self.number(self.problem.extents[ix.IndexVar(param.of)])
            case "entries":
                return f"P{NAMES.index(param.of)}.counts[-1]"
            case "stride":
                return self.number(self.strides[param.of][param.at])
            case _:
                return f"V{NAMES.index(param.of)}[{self.view_number(param)}]"

    def view_number(self, param: Param) -> int:
        """The number of a level's array among all index arrays of its pattern."""
        levels = self.accesses[param.of].tensor.format.levels
        return sum(len(level.arrays) for level in levels[: param.at]) + levels[param.at].arrays.index(param.what)

    def values(self, name: str) -> str:
        """Expression for a 1-D view of a tensor's values."""
        if name == self.result.name:
            return "C" if self.result.shares is not None or len(self.problem.shape) == 1 or self.kernel.is_compiled else "C.ravel()"
        if any(name == access.tensor.name for access in self.beside):
            return f"{name}.ravel()"
        at = NAMES.index(name)
        operand = self.operands[at]
        if not operand.format.is_dense:
            return f"o{at}.viewed" if self.reads_values(at) else f"M{at}.tensor(torch.from_numpy(o{at}.viewed)).numpy()"
        if at in self.copied:
            return f"X{at}.numpy()"
        if operand.strides != row_major(operand.shape):
            return f"flat(o{at})"
        if DTYPES[operand.dtype].kind == "complex":  # NumPy has no lazily conjugated arrays
            return f"o{at}.resolve_conj().numpy().ravel()"
        return f"o{at}.numpy()" if len(operand.shape) == 1 else f"o{at}.numpy().ravel()"

    def cuts(self) -> str:
        """Expression for the array of block starts."""
        return f"{self.placed_cuts()}[0]"

    def placed_array(self, param: Param) -> str:
        """Expression for an array that is cached with a pattern, and its address."""
        return self.placed_cuts() if param.what == "cuts" else f"placed(split_rows, P{NAMES.index(param.of)}, n)"

    def placed_cuts(self) -> str:
        """Expression for block starts and their address: cuts of the only walked operand, the largest merged operand, or the extent."""
        loop = next(loop for loop in ix.loops_of(self.stmt) if isinstance(loop.tag, ix.Parallel))
        lattice = make_lattice(loop.var, ix.value_of(loop.body))
        if not lattice.whole and len(lattice.iterated) == 1:
            (walked,) = lattice.iterated
            return f"placed(cuts_of, P{NAMES.index(walked)}, {self.pieces})"
        levelled = [a for a in self.accesses.values() if not (a.tensor.is_dense or a.tensor.shares or ix.is_relation(a))]
        sparse = [a for a in levelled if a.level_var(0) == loop.var]
        if sparse:
            largest = max(sparse, key=lambda a: self.operands[NAMES.index(a.tensor.name)].counts[-1])
            how = "cuts_of" if largest.tensor.format.levels[0].full else "coordinate_cuts"  # positions of a full level are coordinates
            return f"placed({how}, P{NAMES.index(largest.tensor.name)}, {self.pieces})"
        return f"placed_equally({self.number(self.problem.extents[loop.var])}, {self.pieces})"

    def copy_of_result(self) -> list[str]:
        """Lines that copy a result in the kernel's layout to a row-major tensor R."""
        if self.last is None:
            return []
        shape = self.problem.shape
        new = f"torch.from_numpy({'room' if self.is_large(shape) else 'np.empty'}({self.numbers_of(shape)}, dtype))"
        return [*self.noted(shape, self.result.dtype), f"R = {new} if into is None else into", f"L{len(self.operands)}(T, R)"]

    def result_expression(self) -> str:
        """Expression for the result in its public type: a row-major tensor, or a SparseTensor with the (permuted) pattern of an operand."""
        if self.result.shares is not None:
            pattern, permutation = f"P{self.shared}", self.problem.permutation
            if permutation != tuple(range(len(permutation))):
                pattern += f".permuted({permutation})"
            return f"trusted({pattern}, T)"
        shape = self.problem.shape
        if self.problem.rows is None:
            return "T"
        return f"T[:{self.number(shape[self._first_long_dimension(shape)])}].reshape({self.numbers_of(shape)})"

    @staticmethod
    def _first_long_dimension(shape: Sequence[int]) -> int:
        return next((at for at, size in enumerate(shape) if size != 1), 0)


def _unwritten(count: int, dtype: Any) -> Any:
    """Allocate memory filled with NaN or a large number, which reveals reads of unwritten values."""
    array = np.empty(count, dtype)
    array.fill(np.nan if array.dtype.kind in "fc" else np.iinfo(array.dtype).max if array.dtype.kind == "i" else 1)
    return array
