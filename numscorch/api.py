"""What a user calls: einsum, evaluate, explain, load and save."""

from __future__ import annotations

from collections.abc import Sequence
from errno import EISDIR
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad

from .compute.dispatch import compute
from .compute.operands import any_autocast, call_form, in_autocast, refuse_tangents
from .compute.reductions import check_reduction, prepared, reduced
from .compute.shortcuts import MISSED
from .errors import ExpressionError, FormatError, OperandError, UnsupportedError
from .explanation.explanation import Explanation, timed_story
from .explanation.programs import explain_einsum, explain_program, explain_sparsified
from .files.archives import save_tensor
from .files.foreign import foreign_suffix, is_torchs, unreadable, unwritable
from .files.load import SUFFIXES, check_there, suffix_of
from .files.load import load as read
from .files.safetensors_files import save_safetensors
from .files.writers import write_text
from .frontend.statements import Request, tensor_names
from .ir.format import Format
from .programs.evaluation import evaluate_parts
from .programs.tracing import TRACERS, holds_traced, traced_call
from .runtime.plans import SHORTCUTS, tables_apart
from .sparsifiers.results import einsum_as_statement, evaluate_sparsified, sparsified_einsum
from .tensors.parameter import SparseParameter
from .tensors.sparse_tensor import SparseTensor, beside_programs

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
    """Sum of products over any mix of sparse and dense tensors, in numpy's einsum notation.

    Args:
        expr: the expression, as ``"ij,jk->ik"``; ellipsis, repeated indices and an implicit result
            mean what they mean in ``numpy.einsum``, but a result without the ellipsis sums over its dimensions, as torch's does. The
            sublist form is taken as well, of lists or arrays.
        operands: SparseTensors, torch's sparse tensors of any layout, and strided tensors, on the
            CPU: floats of 16, 32 or 64 bits, signed integers of 8 to 64, uint8, complex, or bool, whose products
            are joined by or. Operands of several data types are promoted as by torch's operators; the ledger lists each
            converted copy. Integers and bool are added up in int64, as by torch, where
            an index of one operand alone is summed over.
        format: the result's format; by default it keeps a sparse operand's pattern where that has
            the result's index set, and is dense where a factor is dense. ``"infer"`` gives the
            literal answer of Algorithm 4 (Scorch, section D.2).
        out: a tensor that receives the result: a strided one, or a SparseTensor whose pattern a
            sparse result keeps.
        reduce: what joins the terms of indices that the result lacks: ``sum``, ``mean``, ``max``,
            ``min``, ``prod``, ``any`` or ``all``; terms of entries that aren't stored are 0, and count.
            ``min_plus``, ``max_plus`` and ``or_and`` are semirings, whose product joins the factors: an
            entry that isn't stored annihilates a term. A place without a term is not stored in a sparse result; where the format
            stores it (a dense result, padding), it is inf for ``min_plus``, -inf for ``max_plus`` and 0 for ``or_and``. The other
            reductions of no terms, over a size of 0, are 0, nan, -inf, inf, 1, 0 (false) and 1 (true), in the order above; the
            ``max`` of integers is the data type's smallest number. Such a result is dense unless ``format`` or ``mask`` says otherwise.
        mask: a sparse tensor, ours or torch's, of the result's shape; only where it has an entry is the result
            computed, and the result has its pattern; the format may be a plain one (CSR, say) where the mask is stored in blocks or
            hash tables. Its values don't matter, and a mask in a dense format changes nothing.
        schedule: what the passes must do, as ``"reorder(i, k, j) parallelize(i) vectorize(j)"``; what is
            left out, they decide. ``parallelize()`` and ``vectorize()`` ask for none.
        sparsifier: of ``numscorch.sparsify``: only what it keeps of the result is stored, as ``sparsify`` stores it, or in ``format``.
            What streaming sparsifiers keep, and ``n_m``, is stored by the kernel that makes the result, which never exists as a whole;
            ``explain`` says where that isn't so, and why.

    Returns:
        A torch tensor, or a SparseTensor for a sparse result (a torch sparse tensor where every
        operand is torch's).

    Raises:
        ExpressionError: the text can't be read, or doesn't fit the operands' ranks.
        SizeError: an index has two sizes.
        ScheduleError: the schedule can't be followed; the text says which rule it breaks.
        UnsupportedError: the construct isn't compiled yet.

    Complexity is that of a loop nest over the stored values: O(nnz * k) for a matrix times k
    columns. Entries that aren't stored take no part: a NaN or inf that meets only those doesn't
    reach the result.

    Source: Scorch, section 4; the compiler is described in ``docs/ARCHITECTURE.md``.

    >>> import torch, numscorch as ns
    >>> A = ns.from_coo([[0, 1, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR)
    >>> ns.einsum("ij,jk->ik", A, torch.ones(3, 2))
    tensor([[1., 1.],
            [5., 5.]])
    """
    if is_compiling():
        from .compute.torch_compile import traced
        from .tensors.aside import aside

        if (
            type(expr) is not str
            or not operands
            or type(operands[0]) in (list, tuple)
            or reduce != "sum"
            or any(given is not None for given in (out, mask, schedule, sparsifier))
        ):
            named = {"out": out, "reduce": reduce, "mask": mask, "schedule": schedule, "sparsifier": sparsifier}
            return aside(einsum, expr, *operands, format=format, **named)
        return traced(expr, in_autocast(operands) if torch.is_autocast_enabled("cpu") else operands, format)
    is_plain = format is None and out is None and mask is None and schedule is None and sparsifier is None and reduce == "sum"
    shortcut = SHORTCUTS.get(expr) if is_plain and type(expr) is str and tables_apart() is None else None
    if shortcut is not None and (result := shortcut.run(shortcut, *operands)) is not MISSED:
        return result
    if sparsifier is not None:
        return sparsified_einsum(expr, operands, sparsifier, format, out, reduce, mask, schedule)
    if TRACERS and holds_traced(operands):
        return traced_call("einsum", expr, *operands, format=format, out=out, reduce=reduce, mask=mask, schedule=schedule)
    if forward_ad._current_level >= 0:
        refuse_tangents(operands)
    if type(expr) is not str or len(operands) < 2:
        expr, operands = call_form(expr, operands)
    if any_autocast() and torch.is_autocast_enabled("cpu"):
        operands = in_autocast(operands)
    if reduce != "sum" or mask is not None or schedule is not None:
        return reduced(expr, operands, format, out, reduce, mask, schedule)
    return compute(expr, operands, format, out)


@beside_programs
def evaluate(statement: str, /, *, format: Format | str | None = None, sparsifier: Any = None, **operands: Any) -> Any:
    """Statements of index notation over any mix of sparse and dense tensors.

    Indices are names, constants as in ``A[i,0]``, or windows: in ``A[i,j(1:8:2)]`` j counts the columns 1, 3, 5, 7, and
    ``A[i,1:8:2]`` sums over them. The slices are made first, as copies of sparse tensors. The size of an index that only the
    left side has is given by its name: ``evaluate("R[i,j] = b[i]", b=b, j=5)``.

    Statements are separated by newlines or semicolons; each reads, by name, what those before it made, and the last one's
    left side is the result. An index that the left side lacks is summed over, in the smallest part of the right side that
    holds all its uses. ``+=``, ``max=``, ``min=`` and ``*=`` reduce the whole right side. Where an operand
    stores no entry, it is 0: a product is then 0, a sum the other term, a function its value at 0.
    ``stored(A[i,j])`` is 1 where A stores an entry, whatever its value, and 0 elsewhere; a dense tensor stores every
    entry. ``m[i] stored max= A[i,j]`` is the largest stored entry, -inf without any, in a dense tensor; to gradients it
    is a constant, being what softmax subtracts (``max=`` has a gradient, and counts entries that aren't stored as 0).

    Args:
        statement: as ``"D[i,j] = relu(A[i,k] * B[k,j]) + C[i,j]"``, or several. Operators are ``+ - * / // % **``, with Python's
            precedence, and comparisons (1 or 0), which are not chained. Functions are ``stored`` and torch's element-wise ones, as ``exp``,
            ``atan2`` and ``where``; ``docs/OPERATORS.md`` lists them. A statement nests at most 100 parentheses and 200
            operators, and has at most 25 operands: a tensor that is read by several lists of indices counts once for each.
        format, sparsifier: of the result; as for :func:`einsum`.
        operands: the tensors, or numbers, by their names. Data types are promoted statement by statement, as torch's
            operators do: numbers, and tensors without dimensions, take the data type of the others if that holds their kind. Quotients
            and functions as ``exp`` convert integers to the default data type; sums of integers or bool are int64, but those of
            products that share the summed index keep the data type, as in :func:`einsum`. Comparisons are 1 or 0 in the data type
            of the tensors that they compare. The condition of ``where`` is promoted with the values.

    Returns:
        A torch tensor, or a SparseTensor for a sparse result.

    Raises:
        ExpressionError: a statement can't be read, or doesn't fit the operands; a name is assigned twice, or
            read before it is assigned.
        SizeError: an index has two sizes.
        RangeError: a constant index is out of range.

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
    if sparsifier is not None:
        return evaluate_sparsified(statement, operands, sparsifier, format)
    return evaluate_parts(statement, operands, format)


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
    """Every stage of compiling an expression: formats, passes, costs, source, and its file.

    Args:
        expr: as for :func:`einsum`, or a statement as for :func:`evaluate`.
        operands, named: tensors, or formats or their text (``"dense"`` too), which stand for a tensor of size
            1024 in every dimension with 16 nonzeros in a row; a statement's by their names.
        format, reduce, mask, schedule, sparsifier: as for :func:`einsum`; a statement takes just a format and a sparsifier, and formats
            can't stand for the tensors of a reduction, or beside a mask.
        timed: whether to compute it too, for about a second, and tell the time beside what memory and processor allow.

    Returns:
        An :class:`Explanation`; ``print`` it, ``save`` it as a page, or read ``.source`` and ``.path``.

    Raises:
        OperandError: a module or a function is given in place of an expression.
        ExpressionError, FormatError, SizeError: as for :func:`einsum`.

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
            named, mask = named | {"mask": mask}, None  # a tensor of that name
        if isinstance(reduce, OPERANDS) and "reduce" in names:
            named, reduce = named | {"reduce": reduce}, "sum"
        if isinstance(timed, OPERANDS) and "timed" in names:
            named, timed = named | {"timed": timed}, False
        if schedule is not None or mask is not None or reduce != "sum":
            given = f"schedule={schedule!r}" if schedule is not None else "mask=" if mask is not None else f"reduce={reduce!r}"
            raise UnsupportedError(f"{given}: statements take none, only einsum does\n  {expr}")
        page = explain_program(expr, named, format) if sparsifier is None else explain_sparsified(expr, named, sparsifier, format)
        return timed_story(page, lambda: evaluate(expr, format=format, sparsifier=sparsifier, **named), expr, named) if timed else page
    if named:
        raise ExpressionError(f"{', '.join(named)}: an einsum's operands have no names: give them in order\n  {expr}")
    expr, operands = call_form(expr, operands)
    page, request, operands_read = _explained(expr, operands, format, reduce, mask, schedule, sparsifier)
    if not timed:
        return page
    options: dict[str, Any] = {"format": format, "reduce": reduce, "mask": mask, "schedule": schedule, "sparsifier": sparsifier}
    return timed_story(page, lambda: einsum(expr, *operands, **options), request, operands_read)


def _check_expression(given: Any) -> None:
    """That an expression is no module and no function."""
    if isinstance(given, torch.nn.Module) and not isinstance(given, SparseParameter):
        way_out = "give one of its products, as in explain('ni,oi->no', x, layer.weight)"
    elif callable(given) and not isinstance(given, OPERANDS):
        way_out = "call ns.fuse(function).explain(*arguments)"
    else:
        return
    raise OperandError(f"explain takes an expression and its operands, not {type(given).__name__}: {way_out}")


def _explained(
    expr: str, operands: tuple[Any, ...], format: Any, reduce: str, mask: Any, schedule: str | None, sparsifier: Any
) -> tuple[Explanation, str | Request, Sequence[Any]]:
    """An einsum's explanation, and the request and the operands that it comes to."""
    if sparsifier is not None:
        return explain_sparsified(*einsum_as_statement(expr, operands), sparsifier, format), expr, operands
    if reduce == "sum" and mask is None:
        return explain_einsum(expr, operands, format, schedule), expr, operands
    check_reduction(reduce, operands)
    request, operands_read = prepared(expr, operands, reduce, mask, schedule)
    return explain_einsum(request, operands_read, format), request, operands_read


def load(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Read a SparseTensor from a file; files that ``torch.save`` wrote are read by ``torch.load``.

    ===================  ==========================================================================
    .mtx, .mtx.gz        Matrix Market, as from the SuiteSparse collection; CSR
    .tns, .tns.gz        FROSTT: a tensor of any number of dimensions; COO
    .smtx, .smtx.gz      DLMC: the pattern of a pruned weight, with values 1; CSR
    .npz                 what :func:`save` or ``scipy.sparse.save_npz`` wrote, or a graph's arrays
    .safetensors         what :func:`save` wrote; needs the package safetensors
    other names          what ``torch.save`` wrote, or :func:`save` under any such name
    ===================  ==========================================================================

    Args:
        f: a path, or whatever ``torch.load`` takes.
        format: the result's format, as ``ns.CSC``; by default as above, and what ``save`` wrote keeps its own.
        dtype: data type of the values; float32 by default, and what ``save`` wrote keeps its own.
        shape: the shape of a .tns file without a comment ``# shape:``; by default the largest indices.
        progress: whether to show a bar on stderr; by default for more than 64 MB of text, where stderr is a terminal.
        args, kwargs: these four, for our files; for others the arguments of ``torch.load``.

    Returns:
        A SparseTensor; for other names whatever was saved.

    Raises:
        FormatError: the file is not what its suffix says (the text names the line), or another program's, as .csv and .h5 (the
            text names a library that reads it).
        SizeError: the tensor would not fit in memory in this format.
        UnsupportedError: a complex matrix, or a data type that kernels can't read.
        FileNotFoundError: there is no such file; the text names one with another suffix.

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


def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """Write a SparseTensor to a file that :func:`load` reads; other names and file objects go to ``torch.save``.

    ===================  ==========================================================================
    .npz                 a tensor in any format, with its data type
    .safetensors         likewise; needs the package safetensors
    .mtx, .mtx.gz        Matrix Market: a matrix, as text; pass ``dtype=`` to ``load``
    .tns, .tns.gz        FROSTT: a tensor, as text; likewise
    .smtx, .smtx.gz      DLMC: the pattern of a matrix of ones, as text
    other names          ``torch.save``, as for .pt, of any object; suffixes of other programs, as .csv, are refused
    ===================  ==========================================================================

    An old file is replaced at the end, in one step.

    Args:
        obj: a SparseTensor or a parameter that holds one, or whatever torch.save takes.
        f: a path that ends in one of these, or whatever torch.save takes.
        progress: whether to show a bar on stderr; by default for large files, where it is a terminal.
        args, kwargs: ``progress`` for our files; for others the arguments of ``torch.save``.

    Raises:
        FormatError: a text file would lose values or dimensions, the object is no SparseTensor, or the suffix is another program's.
        UnsupportedError: values that the file can't hold, or a package that isn't installed.
        OSError: the file can't be written.

    >>> import tempfile, pathlib, numscorch as ns
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "eye.mtx"
    >>> ns.save(ns.from_torch(torch.eye(2)), path)
    >>> path.read_text().splitlines()[1:]
    ['2 2 2', '1 1 1.0', '2 2 1.0']
    """
    A = obj.tensor if isinstance(obj, SparseParameter) else obj
    is_path = isinstance(f, str | PathLike)
    if is_path and (foreign := foreign_suffix(f)) is not None:
        raise unwritable(f, foreign, SUFFIXES)
    suffix = suffix_of(f) if is_path else None
    if suffix is None:
        if is_path and Path(f).is_dir():
            raise IsADirectoryError(EISDIR, "numscorch.save writes a file, not a folder: name a file in it, as A.npz", str(f))
        return torch.save(obj, f, *args, **kwargs)
    if not isinstance(A, SparseTensor):
        kind, way_out = type(obj).__name__, "ns.from_torch(tensor), or " if isinstance(obj, torch.Tensor) else ""
        raise FormatError(f"save of a {kind} to {f}: a {suffix} file holds a SparseTensor; save {way_out}to a .pt file")
    if args or kwargs.keys() - {"progress"}:
        raise UnsupportedError(f"save of a SparseTensor to a {suffix} file takes just progress=: other arguments are torch.save's")
    if suffix == ".npz":
        return save_tensor(A, f, **kwargs)
    return save_safetensors(A, f, **kwargs) if suffix == ".safetensors" else write_text(A, f, suffix, **kwargs)
