"""The main public functions: einsum, evaluate, explain, load and save."""

from __future__ import annotations

from collections.abc import Sequence
from errno import EISDIR
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ..errors import ExpressionError, FormatError, OperandError, UnsupportedError
from ..explanation.explanation import Explanation, timed_story
from ..explanation.programs import explain_einsum, explain_program
from ..files.archives import save_safetensors, save_tensor
from ..files.foreign import foreign_suffix, is_torchs, unreadable, unwritable
from ..files.load import SUFFIXES, check_there, load as read, suffix_of
from ..files.writers import write_text
from ..frontend.requests import Request
from ..frontend.statements import tensor_names
from ..ir.format import Format
from ..programs.dispatch import compute, dispatched
from ..programs.evaluation import evaluate_parts
from ..programs.fitting import MISSED, quick_result
from ..programs.operands import EinsumCall, any_autocast, call_form, in_autocast
from ..programs.reductions import prepared, reduced
from ..programs.tracing import TRACERS, holds_traced, traced_call
from ..sparsifiers.results import einsum_as_statement, evaluate_sparsified, sparsified_einsum
from ..tensors.distributed import handler_of
from ..tensors.graph_breaks import TRACED, TracedFunction, graph_break, traced
from ..tensors.methods import METHODS
from ..tensors.modes import dispatch_modes, recorder
from ..tensors.parameter import SparseParameter
from ..tensors.sparse_tensor import SparseTensor

OPERANDS = SparseTensor | torch.Tensor | Format
is_compiling = torch.compiler.is_compiling


def einsum(
    expr: Any,
    *operands: Any,
    format: Format | str | None = None,
    out: Any = None,
    reduce: str = "sum",
    mask: SparseTensor | torch.Tensor | None = None,
    schedule: str | None = None,
    sparsifier: Any = None,
) -> Any:
    """Sum of products of sparse and dense tensors, in numpy's einsum notation.

    Args:
        expr: the expression, such as ``"ij,jk->ik"``. Ellipsis, repeated indices and an implicit result work like in ``numpy.einsum``,
            with one exception: a result without the ellipsis sums over the ellipsis dimensions, like in torch. The sublist form is
            supported too, with lists or arrays.
        operands: SparseTensors, torch's sparse tensors of any layout, and strided tensors, all on the CPU. Data types are floats of 16,
            32 or 64 bits, signed integers of 8 to 64 bits, uint8, complex, and bool (whose sum is the logical or). Operands of
            different data types are promoted like in torch; the ledger lists each converted copy. If a summed index belongs to a
            single operand, integers and bool are summed in int64, like in torch.
        format: the result's format. By default, if exactly one sparse operand has the result's index set, the result keeps its pattern;
            otherwise the result is dense if a factor is dense. ``"dense"`` gives a strided tensor, ``"auto"`` gives one if many entries
            are expected, and ``"infer"`` applies Algorithm 4 (Scorch, section D.2) literally.
        out: a tensor that receives the result: a strided tensor, or a SparseTensor with the pattern of the sparse result.
        reduce: the reduction over indices that the result lacks: ``sum``, ``mean``, ``max``, ``min``, ``prod``, ``any`` or ``all``.
            Unstored entries count as 0. Over a dimension of size 0 these give 0, nan, -inf, inf, 1, 0 (false) and 1 (true), in this
            order; the ``max`` of integers gives the data type's smallest number. The semirings ``min_plus``, ``max_plus`` and
            ``or_and`` also replace the product; an unstored entry annihilates its term. An element without terms is not stored in a
            sparse result; where the format stores it anyway (dense results, padding), it is inf for ``min_plus``, -inf for
            ``max_plus`` and 0 for ``or_and``. The largest integer of the result's data type is inf for ``min_plus``, the smallest is
            -inf for ``max_plus``, also in operands; their sum with any number is infinite, too. Every reduction has the
            default format of ``sum``.
        mask: a sparse tensor (a SparseTensor or torch's) of the result's shape. The result is computed only at the mask's entries and
            has its pattern. If the mask is stored in blocks or hash tables, ``format`` may be a plain format such as CSR. The mask's
            values are ignored, and a mask in a dense format has no effect.
        schedule: directives for the passes, such as ``"reorder(i, k, j) parallelize(i) vectorize(j)"``. The passes decide everything
            else. ``parallelize()`` and ``vectorize()`` without arguments disable these transformations.
        sparsifier: a sparsifier of ``numscorch.sparsify``. The result stores only the entries that it keeps, in the format of
            ``sparsify`` or in ``format``. With streaming sparsifiers and ``n_m``, the kernel prunes the result while computing it, so the
            complete result is never materialized; with ``topk`` of the rows of a product of sparse tensors, it keeps the largest entries
            when a row is complete, and rows stay unordered without ``format``. ``explain`` reports the exceptions and their reasons.

    Returns:
        A strided tensor, or a SparseTensor for a sparse result (a torch sparse tensor if all operands are torch's). Unstored entries
        don't take part: a NaN or inf that is multiplied only with unstored entries doesn't reach the result.

    Raises:
        ExpressionError: the text can't be parsed, doesn't fit the operands' ranks, or names an unknown reduction.
        SizeError: an index has two sizes, ``out`` or ``mask`` has another shape than the result, a sparse ``out`` has another pattern, or
            the result exceeds the memory limit.
        FormatError: ``format`` is not a format of the result's number of dimensions, or can't store the result.
        OperandError: an operand is not a tensor.
        ScheduleError: the schedule can't be followed; the text names the violated rule.
        UnsupportedError: the construct isn't compiled yet, an operand isn't on the CPU, the mask is strided, or ``out`` can't hold the
            result.

    Complexity:
        That of a loop nest over the stored values: O(nnz * k) for a matrix times k columns.

    Source: Scorch, section 4; the compiler is described in ``docs/ARCHITECTURE.md``.

    >>> import torch, numscorch as ns
    >>> A = ns.from_coo([[0, 1, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR)
    >>> ns.einsum("ij,jk->ik", A, torch.ones(3, 2))
    tensor([[1., 1.],
            [5., 5.]])
    """
    is_plain = mask is None and schedule is None and sparsifier is None and reduce == "sum"
    if is_compiling() or dispatch_modes():
        given = in_autocast(operands) if torch.is_autocast_enabled("cpu") else operands
        options = {"format": format, "reduce": reduce, "mask": mask, "schedule": schedule, "sparsifier": sparsifier}
        if out is not None:
            if is_compiling():
                return METHODS["outside"](einsum, "out= changes a tensor", (expr, *operands), {**options, "out": out})
        elif is_plain and type(expr) is str and operands and type(operands[0]) not in (list, tuple):
            if (result := METHODS["einsum_as_operator"](expr, given, format)) is not NotImplemented:
                return result
        elif is_compiling() or recorder() is not None:
            stated = {key: value for key, value in options.items() if value is not None}
            return METHODS["as_operator"]("einsum", (expr, *given), stated)
    if is_plain and format is None and type(expr) is str and (result := quick_result(expr, operands, out)) is not MISSED:
        return result
    call = EinsumCall(expr, operands, format, out, reduce, mask, schedule, sparsifier)
    if (handler := handler_of(operands)) is not None:
        return handler.einsum(call)
    if sparsifier is not None:
        return sparsified_einsum(call)
    if TRACERS and holds_traced(operands):
        return traced_call("einsum", expr, *operands, **call.options())
    if type(expr) is not str or len(operands) < 2:
        expr, operands = call_form(expr, operands)
    if any_autocast() and torch.is_autocast_enabled("cpu"):
        operands = in_autocast(operands)
    if not is_plain:
        return reduced(call._replace(expr=expr, operands=operands))
    return dispatched(expr, operands, None, out, expr) if format is None else compute(expr, operands, format, out)


TRACED["einsum"] = TracedFunction(einsum)


@traced("evaluate")
def evaluate(statement: str, /, *, format: Format | str | None = None, sparsifier: Any = None, **operands: Any) -> Any:
    """Evaluate statements of index notation over sparse and dense tensors.

    Statements are separated by newlines or semicolons. Each statement can read the results of earlier ones by name; the left side of the
    last statement is the result. An index that the left side lacks is summed over, in the smallest subexpression that contains all its
    uses. ``+=``, ``max=``, ``min=`` and ``*=`` reduce the complete right side.

    Indices are names, constants as in ``A[i,0]``, or windows: in ``A[i,j(1:8:2)]``, j runs over the columns 1, 3, 5, 7, and
    ``A[i,1:8:2]`` sums over them. Windows of sparse tensors are sliced first, into copies. An index that occurs only on the left side
    gets its size by keyword: ``evaluate("R[i,j] = b[i]", b=b, j=5)``.

    Unstored entries are 0: they make a product 0, leave the other term of a sum, and give a function its value at 0.
    ``stored(A[i,j])`` is 1 at the stored entries of A, whatever their values, and 0 elsewhere; dense tensors store every entry.
    ``m[i] stored max= A[i,j]`` is a dense tensor of the largest stored entries, -inf for rows without entries. It is a constant in
    differentiation, as suits the maximum that softmax subtracts. By contrast, ``max=`` is differentiable and counts unstored entries as 0.

    Args:
        statement: one or more statements, such as ``"D[i,j] = relu(A[i,k] * B[k,j]) + C[i,j]"``. Operators are ``+ - * / // % **``
            with Python's precedence, and comparisons (1 or 0), which can't be chained. Functions are ``stored`` and torch's elementwise
            functions, such as ``exp``, ``atan2`` and ``where``; ``docs/OPERATORS.md`` lists them. A statement nests at most 100
            parentheses and 200 operators, and has at most 25 operands; a tensor that is read with several index lists counts once for each.
        format, sparsifier: the result's format and sparsifier, as for :func:`einsum`.
        operands: the tensors or numbers, by name; tensors as for :func:`einsum`. Data types are promoted statement by statement like in
            torch: numbers, and tensors without dimensions, take the data type of the other operands if it can hold their kind. Quotients
            and functions such as ``exp`` convert integers to the default data type. Sums of integers or bool are int64, but sums of
            products that share the summed index keep the data type, as in :func:`einsum`. Comparisons have the data type of the compared
            tensors. The condition of ``where`` is promoted together with the values.

    Returns:
        A strided tensor, or a SparseTensor for a sparse result.

    Raises:
        ExpressionError: a statement can't be parsed, or doesn't fit the operands; or a name is assigned twice, or read before its
            assignment.
        SizeError: an index has two sizes, or the result exceeds the memory limit.
        FormatError: ``format`` is not a format of the result's number of dimensions, or can't store the result.
        OperandError: an operand is not a tensor or a number.
        UnsupportedError: the construct isn't compiled yet.
        RangeError: a constant index is out of range.
        DivisionError: ``//``, ``%`` or ``fmod`` divides an integer by 0; a numerator that is not stored is not divided.

    Source: Kjolstad, Kamil, Chou, Lugato, Amarasinghe, "The Tensor Algebra Compiler", OOPSLA 2017.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> softmax = '''
    ... m[i] stored max= A[i,j]
    ... E[i,j] = stored(A[i,j]) * exp(A[i,j] - m[i])
    ... l[i] = E[i,j]
    ... P[i,j] = E[i,j] / l[i]'''
    >>> ns.evaluate(softmax, A=A).values
    tensor([1., 1.])
    >>> B = ns.from_torch(torch.tensor([[1.0, 0.0], [-9.0, 0.0]]), ns.CSR)
    >>> ns.evaluate("C[i,j] = relu(A[i,j] + B[i,j])", A=A, B=B).to_dense()
    tensor([[1., 2.],
            [0., 0.]])
    """
    if (handler := handler_of(operands.values())) is not None:
        return handler.evaluate(statement, format=format, sparsifier=sparsifier, **operands)
    if sparsifier is not None:
        return evaluate_sparsified(statement, operands, sparsifier, format)
    return evaluate_parts(statement, operands, format)


@graph_break
def explain(
    expr: Any,
    *operands: Any,
    format: Format | str | None = None,
    reduce: str = "sum",
    mask: SparseTensor | torch.Tensor | None = None,
    schedule: str | None = None,
    sparsifier: Any = None,
    timed: bool = False,
    **named: Any,
) -> Explanation:
    """Explain how an expression is compiled: formats, passes, costs, source, and the source file.

    Args:
        expr: an expression as for :func:`einsum`, or a statement as for :func:`evaluate`.
        operands, named: tensors or formats, in order for an einsum, by name for a statement. A format, or its text (``"dense"`` too),
            stands for a tensor of size 1024 in every dimension with 16 nonzeros per row.
        format, reduce, mask, schedule, sparsifier: as for :func:`einsum`. Statements take only ``format`` and ``sparsifier``. With
            ``reduce`` or ``mask``, all operands must be tensors.
        timed: whether to also run the computation, for about a second, and compare its time with the machine's roofs.

    Returns:
        An :class:`Explanation`: print it, save it as a page with ``save``, or read ``.source`` and ``.path``.

    Raises:
        OperandError: ``expr`` is a module or a function, or an operand is neither a tensor nor a format.
        ExpressionError, FormatError, ScheduleError, SizeError: as for :func:`einsum`.
        UnsupportedError: as for :func:`einsum`; or ``timed`` is given with formats instead of tensors, or a statement with ``reduce``,
            ``mask`` or ``schedule``.

    >>> import numscorch as ns
    >>> text = str(ns.explain("ij,j->i", ns.CSR, "dense"))
    >>> "forall(i, where(C[i] = t" in text
    True
    >>> "relu(A[i]) + B[i]" in str(ns.explain("y[i] = relu(A[i,j] * x[j]) + b[i]", A=ns.CSR, x=ns.Format("d"), b=ns.Format("s")))
    True
    """
    _check_expression(expr)
    if isinstance(expr, str) and "=" in expr:
        names = tensor_names(expr)
        if isinstance(mask, OPERANDS) and "mask" in names:
            named, mask = named | {"mask": mask}, None  # an operand named mask
        if isinstance(reduce, OPERANDS) and "reduce" in names:
            named, reduce = named | {"reduce": reduce}, "sum"
        if isinstance(timed, OPERANDS) and "timed" in names:
            named, timed = named | {"timed": timed}, False
        if schedule is not None or mask is not None or reduce != "sum":
            option = f"schedule={schedule!r}" if schedule is not None else "mask=" if mask is not None else f"reduce={reduce!r}"
            raise UnsupportedError(f"{option} is an option of einsum; statements have none\n  {expr}")
        page = explain_program(expr, named, format, sparsifier)
        return timed_story(page, lambda: evaluate(expr, format=format, sparsifier=sparsifier, **named), expr, named) if timed else page
    if named:
        raise ExpressionError(f"{', '.join(named)}: operands of einsum are positional: give them in order\n  {expr}")
    call = EinsumCall(*call_form(expr, operands), format, None, reduce, mask, schedule, sparsifier)
    page, request, operands_read = _explained(call)
    return timed_story(page, lambda: einsum(call.expr, *call.operands, **call.options()), request, operands_read) if timed else page


def _check_expression(expr: Any) -> None:
    """Raise an OperandError if the expression is a module or a function."""
    if isinstance(expr, torch.nn.Module) and not isinstance(expr, SparseParameter):
        suggestion = "give one of its products, as in explain('ni,oi->no', x, layer.weight)"
    elif callable(expr) and not isinstance(expr, OPERANDS):
        suggestion = "call ns.fuse(function).explain(*arguments)"
    else:
        return
    raise OperandError(f"explain takes an expression and its operands, not {type(expr).__name__}: {suggestion}")


def _explained(call: EinsumCall) -> tuple[Explanation, str | Request, Sequence[Any]]:
    """The explanation of an einsum, and the request and the operands that compute it."""
    expr, operands = call.expr, call.operands
    if call.sparsifier is not None:
        return explain_program(*einsum_as_statement(expr, operands), call.format, call.sparsifier), expr, operands
    if call.reduce == "sum" and call.mask is None:
        return explain_einsum(expr, operands, call.format, call.schedule), expr, operands
    request, operands_read, _ = prepared(call)
    return explain_einsum(request, operands_read, call.format), request, operands_read


@graph_break
def load(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Read a SparseTensor from a file. Other files are read by ``torch.load``.

    ===================  ==========================================================================
    .mtx, .mtx.gz        Matrix Market, as in the SuiteSparse collection; CSR
    .tns, .tns.gz        FROSTT: a tensor of any number of dimensions; COO
    .smtx, .smtx.gz      DLMC: the pattern of a pruned weight, with values 1; CSR
    .npz                 an archive of :func:`save` or ``scipy.sparse.save_npz``, or a graph's arrays
    .safetensors         a file of :func:`save`; needs the package safetensors
    other names          a file of ``torch.save``, or of :func:`save` under such a name
    ===================  ==========================================================================

    Args:
        f: a path, or any argument of ``torch.load``.
        format: the result's format, such as ``ns.CSC``; by default as above, or the stored one for files of ``save``.
        dtype: the data type of the values; by default the stored one for files of ``save``; int64 or complex64 if a text file says
            integer or complex; else float32 if it can hold each number as written, or float64.
        shape: the shape of a .tns file; by default that of its ``# shape:`` comment, else the largest indices.
        progress: whether to show a progress bar on stderr; by default for files of more than 64 MB if stderr is a terminal.
        mmap: map a .npz archive of ``save`` into memory, so that products read what they need; its index arrays are not validated.
        args, kwargs: the five arguments above for the listed suffixes; otherwise the arguments of ``torch.load``.

    Returns:
        A SparseTensor; for other names the saved object.

    Raises:
        FormatError: the file is malformed (the text names the line), the format can't store the tensor, or the file belongs to another
            program, such as .csv and .h5 (the text names a library that reads it).
        SizeError: the tensor would not fit in memory in this format.
        UnsupportedError: kernels can't read the data type.
        FileNotFoundError: the file doesn't exist; the text suggests a file of the same name with another suffix.

    >>> import pathlib, tempfile, numscorch as ns
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.mtx"
    >>> _ = path.write_text("%%MatrixMarket matrix coordinate real general\\n2 3 2\\n1 3 4.5\\n2 1 6\\n")
    >>> A = ns.load(path)
    >>> A
    SparseTensor(CSR, shape=(2, 3), nnz=2, density=0.333, float32, int32 indices)
    >>> ns.load(path, format=ns.CSC, dtype=torch.float64).to_dense()
    tensor([[0.0000, 0.0000, 4.5000],
            [6.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    if isinstance(f, str | PathLike) and suffix_of(f) is not None:
        return read(f, *args, **kwargs)
    if isinstance(f, str | PathLike):
        check_there(f, "numscorch.load", others=", and files of torch.save under any other name")
        if not is_torchs(f):
            raise unreadable(f, SUFFIXES)
    return torch.load(f, *args, **kwargs)


@graph_break
def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """Write a SparseTensor to a file for :func:`load`. Other names and file objects are written by ``torch.save``.

    ===================  ==========================================================================
    .npz                 a tensor in any format, with its data type
    .safetensors         a tensor in any format, with its data type; needs the package safetensors
    .mtx, .mtx.gz        Matrix Market: a matrix, as text; pass ``dtype=`` to ``load``
    .tns, .tns.gz        FROSTT: a tensor, as text; pass ``dtype=`` to ``load``
    .smtx, .smtx.gz      DLMC: the pattern of a matrix of ones, as text
    other names          any object, by ``torch.save``; suffixes of other programs, such as .csv, raise an error
    ===================  ==========================================================================

    An existing file is replaced atomically after the new one is complete.

    Args:
        obj: a SparseTensor or a parameter that holds one, or any object that ``torch.save`` takes.
        f: a path with one of these suffixes, or any file argument of ``torch.save``.
        progress: whether to show a progress bar on stderr; by default for large files if stderr is a terminal.
        args, kwargs: ``progress`` for the listed suffixes; otherwise the arguments of ``torch.save``.

    Raises:
        FormatError: a text file would lose values or dimensions, the object isn't a SparseTensor, or the suffix is another program's.
        UnsupportedError: the file can't hold the values, or a package isn't installed.
        OSError: the file can't be written.

    >>> import tempfile, pathlib, numscorch as ns
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "eye.mtx"
    >>> ns.save(ns.from_torch(torch.eye(2)), path)
    >>> ns.load(path).to_dense().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    A = obj.tensor if isinstance(obj, SparseParameter) else obj
    is_path = isinstance(f, str | PathLike)
    if is_path and (foreign := foreign_suffix(f)) is not None:
        raise unwritable(f, foreign, SUFFIXES)
    suffix = suffix_of(f) if is_path else None
    if suffix is None:
        if is_path and Path(f).is_dir():
            raise IsADirectoryError(EISDIR, "numscorch.save writes a file, not a folder: name a file in it, such as A.npz", str(f))
        return torch.save(obj, f, *args, **kwargs)
    if (handler := handler_of([A])) is not None and handler.saved:
        raise FormatError(f"save of a {type(obj).__name__} to {f}, of which each rank holds a part: {handler.saved}")
    if not isinstance(A, SparseTensor):
        kind, suggestion = type(obj).__name__, "ns.from_torch(tensor), or " if isinstance(obj, torch.Tensor) else ""
        raise FormatError(f"save of a {kind} to {f}: a {suffix} file holds a SparseTensor; save {suggestion}to a .pt file")
    if args or kwargs.keys() - {"progress"}:
        raise UnsupportedError(f"save of a SparseTensor to a {suffix} file takes just progress=: other arguments are torch.save's")
    if suffix == ".npz":
        return save_tensor(A, f, **kwargs)
    return save_safetensors(A, f, **kwargs) if suffix == ".safetensors" else write_text(A, f, suffix, **kwargs)
