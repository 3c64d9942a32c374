"""SparseTensor: a pattern, and a torch tensor with the stored values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]  # documented, but not in its __all__

from ..errors import FormatError, MissingError, OperandError, RangeError, SizeError, UnsupportedError
from ..ir.format import Format, as_format, dense
from .arrays import as_integers, as_tensor, check_values
from .dynamo import constant
from .graph_breaks import TRACED, TracedFunction, graph_break, traced
from .ledgers import note
from .methods import METHODS, OPERATORS as OPERATORS, PythonOperators, StoredValues
from .packing import coordinates, entry_count
from .pattern import Pattern
from .suggestions import missing, refusal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from scipy.sparse import sparray


DEVICES = ("cpu", "cuda", "mps", "meta", "xpu")  # names that are no formats; kernels run on the CPU
PROPERTIES: dict[str, Callable[[Any], Any]] = {}  # properties by name; filled by operators.attributes
TORCH_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}  # torch's functions, and their implementations for SparseTensor
REFLECTED: dict[str, Callable[..., Any]] = {}  # methods such as __rsub__ by name: Dynamo does not find their functions among keys


def _contiguous(values: torch.Tensor) -> torch.Tensor:
    note("copy", "values that weren't contiguous", values.nbytes)
    return values.contiguous()


def _position_count(pattern: Pattern) -> int:
    """The number of positions while torch compiles: Dynamo cannot trace that a pattern counts them at first use.

    The coordinates of a compressed level are as many, so that a program serves other patterns, too.
    """
    last = pattern.arrays[-1] if pattern.arrays else ()
    return last[1].shape[0] if len(last) == 2 else _constant_count(pattern)


@constant
def _constant_count(pattern: Pattern) -> int:
    return pattern.nnz


class SparseTensor(StoredValues, PythonOperators):
    """A tensor stored in any :class:`Format`.

    Functions such as :func:`from_coo`, :func:`from_csr`, :func:`from_torch`, :func:`from_scipy` and :func:`load` create it. It supports
    Python's operators and most of torch's functions and tensor methods, as in ``A @ x``, ``torch.relu(A)`` and ``A.sum(1)``.

    It is not a ``torch.Tensor``, but its ``values`` are: differentiate and optimize them, as in ``torch.autograd.grad(loss, A.values)``.
    ``A.grad`` is the gradient of the values as a SparseTensor. Unlike in torch's sparse tensors, ``values`` is a property: write
    ``A.values``, without parentheses.

    Args:
        pattern: format, shape and index arrays, shared by all tensors with this pattern.
        values: the stored values in storage order, shape (nnz,); shape (pattern.nnz,) in formats with positions that hold
            no entry, such as bitmap and hash.

    Raises:
        SizeError: the values have another shape.
        UnsupportedError: the values have an unsupported data type, device or layout.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse_csr())
    >>> A
    SparseTensor(CSR, shape=(2, 2), nnz=2, density=0.5, float32, int64 indices)
    >>> A @ torch.ones(2)
    tensor([2., 3.])
    """

    __slots__ = ("__weakref__", "_address", "_values", "pattern")

    def __init__(self, pattern: Pattern, values: torch.Tensor | ArrayLike):
        self.pattern = pattern
        self.values = values

    @classmethod
    def trusted(cls, pattern: Pattern, values: torch.Tensor) -> SparseTensor:
        """Create a tensor from a pattern and values that fit it, without checks; for kernels' results.

        Args:
            pattern: format, shape and index arrays.
            values: the contiguous values, shape (pattern.nnz,).

        Returns:
            A SparseTensor that shares the values.
        """
        tensor = cls.__new__(cls)
        tensor.pattern, tensor._values, tensor._address = pattern, values, -1
        return tensor

    @property
    def values(self) -> torch.Tensor:
        """The stored values in storage order, one for each position of the pattern; assign a tensor of that shape to replace them.

        Raises:
            SizeError: an assigned tensor has another shape.
            UnsupportedError: an assigned tensor has an unsupported data type, device or layout.
        """
        return self._values

    @values.setter
    def values(self, values: torch.Tensor | ArrayLike) -> None:
        values = values if isinstance(values, torch.Tensor) else as_tensor(values, "values")
        stored = _position_count(self.pattern) if torch.compiler.is_compiling() else self.pattern.nnz
        if values.shape != (stored,):
            raise SizeError(f"values has shape {tuple(values.shape)}, but the pattern has {stored} positions: pass shape ({stored},)")
        values = check_values(values)
        self._values = values if values.is_contiguous() else _contiguous(values)
        self._address = -1

    @property
    def viewed(self) -> np.ndarray:
        """The values as a NumPy view of the same memory.

        The view goes through DLPack: after ``values.numpy()``, torch can't resize the memory, as ``fully_shard`` does.

        Raises:
            SizeError: the shape of the values was changed in place.
        """
        if self._values.data_ptr() != self._address:
            self.locate()
        return from_dlpack(to_dlpack(self._values.detach())).numpy()

    def locate(self) -> None:
        """Check the values, and keep their address for kernels that read them there.

        Raises:
            SizeError: the shape of the values was changed in place.
        """
        values = self._values
        if values.shape != (self.pattern.nnz,) or not values.is_contiguous():
            raise SizeError(f"values was changed to shape {tuple(values.shape)}, but the pattern has {self.pattern.nnz} positions")
        self._address = values.data_ptr()

    def __reduce__(self) -> tuple[type[SparseTensor], tuple[Pattern, torch.Tensor]]:
        return SparseTensor, (self.pattern, self._values)

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseTensor:
        """Copy the values and share the pattern, or use the copy of the pattern that the same ``deepcopy`` call made."""
        return SparseTensor(memo.get(id(self.pattern), self.pattern), copy.deepcopy(self._values, memo))

    @property
    def shape(self) -> torch.Size:
        """Size of every dimension."""
        return torch.Size(self.pattern.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.pattern.shape)

    @property
    def format(self) -> Format:
        """Storage format."""
        return self.pattern.format

    @property
    def nnz(self) -> int:
        """Number of stored entries, explicit zeros included."""
        return entry_count(self.pattern)

    @property
    def grad(self) -> SparseTensor | None:
        """The gradient of the values as a SparseTensor with this pattern; None before the first backward pass.

        Raises:
            OperandError: an assigned gradient is not a SparseTensor.
        """
        gradient = self._values.grad
        return None if gradient is None else self.with_values(gradient)

    @grad.setter
    def grad(self, gradient: SparseTensor | None) -> None:
        if gradient is not None and not isinstance(gradient, SparseTensor):
            raise OperandError(
                f"the gradient of a SparseTensor is a SparseTensor or None, not {type(gradient).__name__}: assign to A.values.grad"
            )
        self._values.grad = None if gradient is None else gradient.values

    @property
    def T(self) -> SparseTensor:
        """The tensor with its dimensions reversed; shares all arrays."""
        return self._permuted(tuple(range(self.ndim))[::-1])

    @graph_break
    def indices(self) -> torch.Tensor:
        """The coordinates of the stored entries, in storage order.

        ``values`` is longer in formats with positions that hold no entry, such as the padding of a block that extends past the edge;
        ``A.to(ns.COO(A.ndim))`` has one value for each entry.

        Returns:
            A new int64 tensor of shape (ndim, nnz).

        Complexity:
            O(nnz).

        >>> import numscorch as ns
        >>> ns.from_coo([[1, 0], [0, 2]], [5.0, 1.0], (2, 3), ns.CSR).indices()
        tensor([[0, 1],
                [2, 0]])
        """
        return coordinates(self.pattern).clone()

    def with_values(self, values: torch.Tensor | ArrayLike) -> SparseTensor:
        """Create a tensor with the same pattern and other values.

        Args:
            values: the new values in storage order, of the shape of ``A.values`` and any supported data type. Contiguous tensors
                and NumPy arrays are not copied.

        Returns:
            A SparseTensor that shares the pattern.

        Raises:
            SizeError: the values have another shape.
            UnsupportedError: the values have an unsupported data type, device or layout.

        >>> import numscorch as ns
        >>> A = ns.eye(2, format=ns.CSR)
        >>> A.with_values([3.0, 4.0]).to_dense()
        tensor([[3., 0.],
                [0., 4.]])
        """
        return SparseTensor(self.pattern, values)

    @traced("to_dense")
    def to_dense(self) -> torch.Tensor:
        """Convert to a strided tensor; gradients flow to the values.

        Returns:
            A strided tensor of the same shape and data type. Unstored entries are 0.

        Raises:
            SizeError: the result exceeds the memory limit.
        """
        return METHODS["to_dense"](self)

    @graph_break
    def to_torch(self, *, copy: bool = True) -> torch.Tensor:
        """Convert to a torch sparse tensor; gradients flow to the values.

        Args:
            copy: False shares values and index arrays where possible. Then write to the values only.

        Returns:
            A CSR, CSC, BSR, BSC or COO tensor, possibly batched or hybrid. Formats that torch lacks are converted to CSR, CSC or COO.

        Raises:
            UnsupportedError: the tensor has no dimensions, or the matrices of a batch store different numbers of values.

        >>> import numscorch as ns
        >>> ns.eye(2, format=ns.DCSR).to_torch().layout
        torch.sparse_csr
        """
        return METHODS["to_torch"](self, copy)

    @graph_break
    def to_scipy(self, *, copy: bool = True) -> sparray:
        """Convert to a SciPy sparse array, detached from autograd; requires SciPy.

        Args:
            copy: False shares the arrays of csr, csc, coo and bsr. Index arrays are then read-only, and SciPy's functions that sort or
                merge entries in place raise ValueError.

        Returns:
            A csr_array, csc_array, coo_array, bsr_array or dia_array. Formats that SciPy lacks are converted to csr, csc or coo.

        Raises:
            UnsupportedError: the tensor has no dimensions, or the data type is bfloat16, which NumPy lacks.

        >>> import numscorch as ns
        >>> ns.eye(2, format=ns.CSC).to_scipy().format
        'csc'
        """
        return METHODS["to_scipy"](self, copy)

    @graph_break
    def to_pydata(self, *, copy: bool = True) -> Any:
        """Convert to an array of pydata/sparse, detached from autograd; requires the package ``sparse``.

        Args:
            copy: False shares the arrays of CSR, CSC and COO. Index arrays are then read-only.

        Returns:
            A ``sparse.COO`` for COO formats and tensors that aren't matrices, and a ``sparse.GCXS`` for other matrices.

        Raises:
            UnsupportedError: the tensor has no dimensions, or the data type is bfloat16, which NumPy lacks.
        """
        return METHODS["to_pydata"](self, copy)

    @graph_break
    def to_edge_index(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Convert a matrix ``A[target, source]`` to an edge list, the inverse of :func:`adj_t`; gradients flow to the weights.

        Returns:
            Sources and targets, int64 of shape (2, nnz), and weights of shape (nnz,), both in storage order.

        Raises:
            SizeError: the tensor isn't a matrix.
            UnsupportedError: the format has padding, such as ELL.

        >>> import numscorch as ns
        >>> ns.adj_t([[0, 1], [2, 0]], [3.0, 4.0]).to_edge_index()
        (tensor([[1, 0],
                [0, 2]]), tensor([4., 3.]))
        """
        return METHODS["to_edge_index"](self)

    @graph_break
    def to_torch_sparse(self, *, copy: bool = True) -> Any:
        """Convert a matrix to a ``torch_sparse.SparseTensor``; gradients flow to the values. Requires torch_sparse.

        Args:
            copy: False shares the values of CSR, and index arrays that are int64. Then write to the values only.

        Returns:
            A ``torch_sparse.SparseTensor`` with int64 CSR arrays.

        Raises:
            SizeError: the tensor isn't a matrix.
            UnsupportedError: the format has padding, such as ELL.
        """
        return METHODS["to_torch_sparse"](self, copy)

    @graph_break
    def to_networkx(self, create_using: Any = None) -> Any:
        """Convert a square matrix to a networkx graph; requires networkx. See the guide on graphs.

        Args:
            create_using: the class of the graph, or a graph to clear and fill; by default ``networkx.DiGraph``. An undirected graph needs
                a symmetric matrix.

        Returns:
            A graph with an edge from i to j, and the attribute ``weight``, for each stored ``A[i, j]``.

        Raises:
            FormatError: the graph is undirected, but the matrix isn't symmetric.
            SizeError: the tensor isn't a square matrix.
            UnsupportedError: the format has padding, such as ELL.
        """
        return METHODS["to_networkx"](self, create_using)

    @graph_break
    def to_dgl(self, weight: str = "weight") -> Any:
        """Convert a square matrix to a DGL graph; requires DGL. See the guide on graphs.

        Args:
            weight: the name of the edge data that receive the values.

        Returns:
            A ``DGLGraph`` with an edge from i to j for each stored ``A[i, j]``, in storage order.

        Raises:
            SizeError: the tensor isn't a square matrix.
            UnsupportedError: the format has padding, such as ELL.
        """
        return METHODS["to_dgl"](self, weight)

    @traced("to")
    def to(
        self,
        target: Format | torch.dtype | torch.layout | torch.device | str | torch.Tensor | SparseTensor | None = None,
        dtype: torch.dtype | bool | None = None,
        non_blocking: bool = False,
        copy: bool = False,
        *,
        device: torch.device | str | None = None,
        memory_format: Any = None,
    ) -> SparseTensor:
        """Convert to another format or data type; gradients flow to the values.

        All stored entries are kept, explicit zeros included. The pattern caches its conversions: a repeated conversion only gathers the
        values.

        Args:
            target: a format, its text, ``"dense"``, a layout of torch, a data type, a device, or a tensor whose data type and device are
                used.
            dtype: the data type of the values.
            non_blocking: ignored; for compatibility with torch.
            copy: True copies the values even if nothing changes.
            device: the CPU.
            memory_format: ignored; for compatibility with torch.

        Returns:
            A SparseTensor of the same shape; the tensor itself if nothing changes.

        Raises:
            FormatError: the target isn't a format, or is a format that has another number of dimensions or can't store the entries.
            SizeError: the result exceeds the memory limit.
            UnsupportedError: a device other than the CPU, or an unsupported data type or layout.

        Complexity:
            At most O(nnz log nnz) for the first conversion of a pattern, and O(nnz) for later ones, plus the positions of dense levels.

        >>> import torch, numscorch as ns
        >>> ns.from_torch(torch.eye(2)).to(ns.CSC, torch.float64)
        SparseTensor(CSC, shape=(2, 2), nnz=2, density=0.5, float64, int32 indices)
        """
        if type(target) is Format and dtype is None and device is None and not copy:
            return METHODS["to_format"](self, target)
        if isinstance(dtype, bool):  # torch's overload (dtype, non_blocking, copy)
            dtype, copy = None, non_blocking or copy
        options: tuple[Any, ...] = (target,)
        if hasattr(target, "layout"):  # a tensor or parameter
            options = (getattr(target, "device", None), getattr(target, "dtype", None))
        result = self
        for option in (*options, device, dtype):
            result = result if option is None else result._changed(option)
        return OPERATORS["clone"](result) if copy and result._values.data_ptr() == self._values.data_ptr() else result

    def _changed(self, target: Format | torch.dtype | torch.layout | torch.device | str) -> SparseTensor:
        if isinstance(target, torch.dtype):
            return self if target == self.dtype else self.with_values(check_values(self.values.to(target)))
        if isinstance(target, torch.layout):
            return OPERATORS["to_sparse"](self, layout=target)
        device = str(target).partition(":")[0] if isinstance(target, str | torch.device) else None
        if device == "cpu":
            return self
        if device in DEVICES or isinstance(target, torch.device):
            raise UnsupportedError(f"can't move to {target}: numscorch runs on the CPU")
        return METHODS["to_format"](self, dense(self.ndim) if target == "dense" else as_format(target))

    @traced("permute")
    def permute(self, *order: int | Sequence[int], dims: Sequence[int] | None = None) -> SparseTensor:
        """Permute the dimensions.

        Args:
            order: the dimensions in their new order, as separate integers or as a sequence; negative ones count from the end.
            dims: the sequence by keyword, as in torch.

        Returns:
            A SparseTensor in the permuted format, which shares all arrays.

        Raises:
            OperandError: a dimension is not an integer.
            RangeError: the order does not name each dimension once.

        >>> import numscorch as ns
        >>> ns.zeros(2, 3, 4, format=ns.CSF(3)).permute(2, 0, 1).shape
        torch.Size([4, 2, 3])
        """
        named = as_integers(*order) if dims is None else as_integers(*order, dims)
        places = tuple(d + self.ndim * (d < 0) for d in named)
        if sorted(places) != list(range(self.ndim)):
            raise RangeError(f"permute{named} of a {self.ndim}-dimensional tensor: name each dimension once")
        return self._permuted(places)

    def _permuted(self, places: tuple[int, ...]) -> SparseTensor:
        if torch.compiler.is_compiling():
            return METHODS["as_operator"]("permuted", (self, places), {})
        result = SparseTensor.trusted(self.pattern.permuted(places), self._values)
        result._address = self._address
        return result

    @traced("t")
    def t(self) -> SparseTensor:
        """Transpose a matrix; tensors with fewer dimensions are returned unchanged.

        Returns:
            A SparseTensor in the permuted format (CSR becomes CSC), which shares all arrays.

        Raises:
            SizeError: the tensor has more than 2 dimensions.

        >>> import numscorch as ns
        >>> ns.zeros(2, 3, format=ns.CSR).t()
        SparseTensor(CSC, shape=(3, 2), nnz=0, density=0, float32, int32 indices)
        """
        if self.ndim > 2:
            raise SizeError(f"t() takes at most 2 dimensions, not {self.ndim}: use permute")
        return self._permuted((1, 0) if self.ndim == 2 else tuple(range(self.ndim)))

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        suggestion = "use .to_dense().numpy() or .to_scipy(), or ns.from_scipy(S) of the other operand"
        raise UnsupportedError(f"a SparseTensor is not a NumPy array: {suggestion}")

    def __getattr__(self, name: str) -> Any:
        """Look up methods in the table of operators, and properties in ``operators.attributes``.

        Raises:
            MissingError: the attribute does not exist; for names of torch, SciPy and NumPy, the text has the alternative.
        """
        if name in PROPERTIES:
            return PROPERTIES[name](self)
        operator = None if name.startswith("_") else OPERATORS.get(name)
        if operator is None:
            if torch.compiler.is_compiling():
                raise AttributeError(missing(name))  # Dynamo's hasattr expects this class
            raise MissingError(missing(name), name=name, obj=self)
        return operator.__get__(self)  # Dynamo cannot trace types.MethodType

    def __dir__(self) -> list[str]:
        """Include the operators and properties that torch.Tensor has."""
        return sorted({*super().__dir__(), *(name for name in (*OPERATORS, *PROPERTIES) if hasattr(torch.Tensor, name))})

    def where(self, condition: Any, other: Any) -> Any:
        """Select elements of this tensor where a condition holds, and of another one elsewhere: ``torch.where(condition, self, other)``.

        Args:
            condition: a boolean tensor, sparse or strided, that broadcasts to the result's shape; unstored entries are False.
            other: a tensor that broadcasts to the result's shape, or a number.

        Returns:
            A SparseTensor if unstored elements of the result are 0, else a strided tensor.

        Raises:
            OperandError: ``condition`` is not a tensor, or ``other`` is neither a tensor nor a number.
            SizeError: the shapes don't broadcast.

        >>> import numscorch as ns
        >>> A = ns.from_coo([[0, 1], [1, 0]], [2.0, -3.0], (2, 2), ns.CSR)
        >>> A.where(A > 0, 0).to_dense()
        tensor([[0., 2.],
                [0., 0.]])
        """
        return OPERATORS["where"](condition, self, other)

    @graph_break
    def coalesce(self) -> SparseTensor:
        """Sort the coordinates of unordered levels, and sum entries with equal coordinates; see :func:`coalesce`.

        Returns:
            A SparseTensor with sorted, unique coordinates; the tensor itself if its coordinates are sorted and unique.

        Raises:
            FormatError: index arrays that were not checked are invalid.
        """
        return METHODS["coalesce"](self)

    def sort(self, *args: Any, **kwargs: Any) -> SparseTensor:
        """Sort the coordinates of each row, like ``coalesce()``; unlike ``torch.sort``, it sorts no values.

        Args:
            args, kwargs: not supported.

        Returns:
            A SparseTensor with sorted, unique coordinates.

        Raises:
            FormatError: as for :meth:`coalesce`.
            UnsupportedError: an argument is given.
        """
        return METHODS["sort"](self, *args, **kwargs)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        implementation = TORCH_FUNCTIONS.get(func)
        if implementation is None and torch.compiler.is_compiling():
            implementation = REFLECTED.get(func.__name__)
        if implementation is None:
            name = getattr(func, "__name__", str(func))
            name = f"masked.{name}" if str(getattr(func, "__module__", "")).startswith("torch.masked") else name
            raise UnsupportedError(refusal(name))
        return implementation(*args, **kwargs) if kwargs else implementation(*args)

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"SparseTensor({self.format.name}, shape={self.pattern.shape}, nnz={self.nnz}, "
            f"density={self.density:.3g}, {dtype}, {self.pattern.index_dtype} indices{grad})"
        )

    def _repr_html_(self) -> str:
        return METHODS["card"](self)

    @graph_break
    def spy(self, ax: Axes | None = None, **kwargs: Any) -> Axes:
        """Plot the pattern with matplotlib; large patterns are drawn as densities of all entries, on a log scale.

        The last two dimensions are drawn, summed over the leading ones. A vector is drawn as one row.

        Args:
            ax: the axes to draw on; the current axes by default.
            kwargs: passed to ``ax.imshow``, for example ``cmap``.

        Returns:
            The axes.

        Raises:
            SizeError: the tensor has no dimensions.
            UnsupportedError: matplotlib isn't installed.
        """
        return METHODS["spy"](self.pattern, ax, **kwargs)

    def __len__(self) -> int:
        if not self.ndim:
            raise FormatError("len() of a 0-dimensional tensor")
        return self.pattern.shape[0]


TRACED["permuted"] = TracedFunction(SparseTensor._permuted)
