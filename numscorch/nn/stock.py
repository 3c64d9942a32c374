"""Stock modules of torch with sparse weights: the values are the parameter of a parametrization, and torch's functions take the weight."""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

import torch
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized, register_parametrization, remove_parametrizations

from ..errors import OperandError, SizeError, UnsupportedError
from ..interface.api import einsum
from ..tensors.arrays import converter
from ..tensors.parameter import unwrapped
from ..tensors.pattern import Pattern
from ..tensors.pattern_module import ASSIGN, PatternModule, entries_at, take_dense, unassigned
from ..tensors.sparse_tensor import TORCH_FUNCTIONS, SparseTensor
from ..tensors.suggestions import refusal
from .embedding import checked_padding, embedded
from .sparse_layers import projected, sides_of, unfolded

M = TypeVar("M", bound=torch.nn.Module)


class ValuesOfWeight(PatternModule):
    """The parametrization of a sparse weight: a function from the values to the SparseTensor. Its buffers are the index arrays."""

    NAME, ADOPT = "pattern", "load with assign=True to take over the pattern of the state, and make the optimizer afterwards"

    def __init__(self, pattern: Pattern):
        super().__init__()
        self.hold(pattern)

    def forward(self, values: torch.Tensor) -> SparseTensor:
        """Return the SparseTensor of these values."""
        if not torch.compiler.is_compiling():
            self._follow()
        return SparseTensor(self.pattern, values)

    def right_inverse(self, weight: Any) -> torch.Tensor:
        """Return the values of a weight; torch calls this when a weight is assigned to the module.

        Raises:
            OperandError: the weight stores other entries, or has nonzeros that the pattern does not store.
        """
        weight = unwrapped(weight)
        if isinstance(weight, SparseTensor):
            problem = "" if weight.pattern.stores_as(self.pattern) else f"{weight!r} stores other entries than the pattern"
            values = weight.values
        elif weight.shape == (self.pattern.nnz,):
            return weight
        else:
            values, problem = entries_at(self.pattern, weight)
        if problem:
            raise OperandError(f"assigned to a sparse weight ({self.extra_repr()}): {problem}")
        return values.detach()

    def extra_repr(self) -> str:
        """Return the format, the shape and the number of entries."""
        return f"{self.pattern.format.name}, shape={self.pattern.shape}, nnz={self.pattern.nnz}"


def sparse_weight(module: M, name: str, A: SparseTensor) -> M:
    """Make a weight of a stock module sparse, in place, by a parametrization of ``torch.nn.utils.parametrize``.

    The module keeps its class, its ``forward`` and its hooks. ``module.weight`` is a SparseTensor. Only the stored values are trained:
    they are the parameter ``module.parametrizations.weight.original``, and the index arrays are buffers. Modules that call
    ``torch.nn.functional`` with the weight accept it: ``Linear``, ``Embedding``, ``Conv1d``, ``Conv2d``, ``MultiheadAttention``, and the
    layers of ``Transformer``. A convolution unfolds its input, as :class:`SparseConv2d` does.

    ``copy.deepcopy``, ``DistributedDataParallel``, ``fully_shard``, ``torch.compile`` and ``torch.export`` work as for other
    parametrizations. ``load_state_dict`` needs a state with the same pattern, or the state of the stock module, if the nonzeros of its
    weight lie in the pattern. With ``assign=True``, it takes over the pattern of the state. :func:`dense_weight` is the inverse;
    ``torch.nn.utils.parametrize.remove_parametrizations`` raises an error. torch does not pickle parametrized modules: save the
    ``state_dict()`` of the module. If the first layer of a ``TransformerEncoder`` is dense and
    another one is not, create it with ``enable_nested_tensor=False``.

    Args:
        module: the module. It has the weight itself, as ``attention.out_proj`` has the weight ``attention.out_proj.weight``.
        name: name of the weight. Its parameter is replaced, so make optimizers afterwards.
        A: the weight, in any format. Its pattern is shared, and its values share memory with the new parameter.

    Returns:
        The module.

    Raises:
        OperandError: ``A`` is not a SparseTensor, or the module has no parameter of this name.
        SizeError: the weight has another shape than ``A``.
        UnsupportedError: the module is recurrent.

    >>> import numscorch as ns
    >>> layer = sparse_weight(torch.nn.Linear(3, 2), "weight", ns.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]], format=ns.CSR))
    >>> [name for name, _ in layer.named_parameters()], layer.weight.nnz
    (['bias', 'parametrizations.weight.original'], 2)
    >>> layer(torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """
    A, weight, kind = unwrapped(A), module._parameters.get(name), type(module).__name__
    if not isinstance(A, SparseTensor):
        raise OperandError(f"sparse_weight takes a SparseTensor, not {type(A).__name__}: convert it with {converter(A) or 'ns.from_torch'}")
    if weight is None:
        raise OperandError(f"{kind} has no parameter {name!r}, only {list(module._parameters)}: give the submodule that has it")
    if weight.shape != A.shape:
        raise SizeError(f"{name} of {kind} has shape {tuple(weight.shape)}, but A has {tuple(A.shape)}: give a weight of that shape")
    if isinstance(module, torch.nn.RNNBase | torch.nn.RNNCellBase):
        raise UnsupportedError(
            f"{name} of {kind} as a SparseTensor: torch computes all gates in one operator of dense weights; compute the gates with "
            "ns.nn.SparseLinear instead"
        )
    module.register_parameter(name, torch.nn.Parameter(A.values.detach(), weight.requires_grad))
    register_parametrization(module, name, ValuesOfWeight(A.pattern), unsafe=True)
    stock: Any = module
    if _take_state not in [hook.hook for hook in stock._load_state_dict_pre_hooks.values()]:
        stock.register_load_state_dict_pre_hook(_take_state)
    return module


def dense_weight(module: M, name: str) -> M:
    """Make a weight of a stock module dense again, in place; the inverse of :func:`sparse_weight`.

    Args:
        module: a module on which :func:`sparse_weight` was called.
        name: name of the weight. The values are replaced by a dense ``torch.nn.Parameter``, so make optimizers afterwards.

    Returns:
        The module.

    Raises:
        OperandError: the weight is not sparse.

    >>> import numscorch as ns
    >>> layer = sparse_weight(torch.nn.Linear(2, 2), "weight", ns.eye(2, format=ns.CSR))
    >>> dense_weight(layer, "weight").weight
    Parameter containing:
    tensor([[1., 0.],
            [0., 1.]], requires_grad=True)
    """
    if not is_parametrized(module, name) or not isinstance(A := getattr(module, name), SparseTensor):
        raise OperandError(f"{name} of {type(module).__name__} is not sparse: give a weight that ns.nn.sparse_weight made sparse")
    remove_parametrizations(module, name, leave_parametrized=False)
    module.register_parameter(name, torch.nn.Parameter(A.detach().to_dense(), A.requires_grad))
    return module


def _take_state(
    module: Any,
    state: dict[str, Any],
    prefix: str,
    metadata: dict[str, Any],
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Hook of ``load_state_dict``: take dense weights of the stock module, and with ``assign=True`` the patterns of the state."""
    for name, held in getattr(module, "parametrizations", {}).items():
        if isinstance(entries := held[0], ValuesOfWeight):
            inside, before = f"{prefix}parametrizations.{name}.", entries.pattern
            take_dense(state, f"{prefix}{name}", f"{inside}original", before, unexpected_keys)
            if metadata.get(ASSIGN) and not entries.take_pattern(state, f"{inside}0.", metadata) and entries.pattern is not before:
                held.original = unassigned(held.original, entries.pattern)


def _embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.embedding of a sparse table."""
    if isinstance(input, SparseTensor):
        raise UnsupportedError(refusal("embedding"))
    for name, value in (("max_norm", max_norm), ("scale_grad_by_freq", scale_grad_by_freq), ("sparse", sparse)):
        if value:
            raise UnsupportedError(f"{name}={value} of an embedding with a sparse weight: leave {name}= out")
    return embedded(input, weight, None if padding_idx is None else checked_padding(padding_idx, weight.shape[0]))


def _convolution(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> torch.Tensor:
    """torch.nn.functional.conv1d and conv2d with a sparse weight, as a product with the unfolded input."""
    names = "oihw" if weight.ndim == 4 else "oiw"
    rank = len(names) - 2
    if not isinstance(weight, SparseTensor) or isinstance(input, SparseTensor) or not weight.dtype.is_floating_point:
        raise UnsupportedError(refusal(f"conv{rank}d"))
    if groups != 1:
        raise UnsupportedError(f"groups={groups} of a convolution with a sparse weight: make it with groups=1, and a block-diagonal weight")

    def both(sizes: Any, height: int) -> tuple[int, int]:
        return (height, *((sizes,) * rank if isinstance(sizes, int) else tuple(sizes) * (rank if len(sizes) == 1 else 1)))[-2:]

    batch = input if input.ndim == rank + 2 else input[None]
    if batch.ndim != rank + 2 or batch.shape[1] != weight.shape[1]:
        raise SizeError(f"input has shape {tuple(input.shape)}, but the weight has {tuple(weight.shape)}, for {weight.shape[1]} channels")
    kernel, steps, gaps = both(weight.shape[2:], 1), both(stride, 1), both(dilation, 1)
    sides = sides_of(padding if isinstance(padding, str) else both(padding, 0), kernel, steps, gaps)
    columns, sizes = unfolded(batch if rank == 2 else batch[:, :, None], kernel, steps, sides, gaps)
    output: torch.Tensor = einsum(f"{names},n{names[1:]}l->nol", weight, columns.unflatten(1, weight.shape[1:]))
    output = output.unflatten(2, sizes[-rank:]) if bias is None else (output + bias.to(output.dtype)[:, None]).unflatten(2, sizes[-rank:])
    return output if input.ndim == rank + 2 else output[0]


def _projections(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weight: Any, bias: Any = None) -> Any:
    """torch's projections, which split the weight; compiled programs split the products instead."""
    if not torch.compiler.is_compiling():
        return functional._in_projection_packed(query, key, value, weight, bias)  # type: ignore[attr-defined]
    return [product.contiguous() for product in projected(query, key, value, weight, bias)]


_attention: Any = FunctionType(  # torch's function without its first step, which would call __torch_function__ again
    functional.multi_head_attention_forward.__code__,
    vars(functional) | {"has_torch_function": lambda tensors: False, "_in_projection_packed": _projections},
    argdefs=functional.multi_head_attention_forward.__defaults__,
)
TORCH_FUNCTIONS.update(
    {
        functional.embedding: _embedding,
        torch.conv1d: _convolution,
        torch.conv2d: _convolution,
        functional.multi_head_attention_forward: lambda *args, **kwargs: _attention(*args, **kwargs),
    }
)
