"""Unary functions under torch's names: applied to the stored values if they map 0 to 0, else to the dense tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ..convert.values import densified
from ..errors import UnsupportedError
from ..frontend.operator_forms import OF_ONE_TENSOR, keeps_zero
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import SparseTensor
from .naming import torchs, with_name

WITHOUT_FORM = "angle conj erfinv hardshrink imag isneginf isposinf nan_to_num positive real sgn signbit softshrink"  # they map 0 to 0
FROM_ZERO = "the function is nonzero at 0, and A.to_dense() requests a dense result"
MEANINGS = {  # of functions that are public in torch: what they compute, and the entries and the result of an example
    "abs": ("The absolute value of each entry", "0.0, -1.5", "[0.0000, 1.5000]"),
    "acos": ("The arccosine of each entry", "0.0, 0.5", "[1.5708, 1.0472]"),
    "acosh": ("The inverse hyperbolic cosine of each entry", "0.0, 2.0", "[   nan, 1.3170]"),
    "angle": ("The argument of each entry, as a complex number, in radians", "0.0, -2.0", "[0.0000, 3.1416]"),
    "asin": ("The arcsine of each entry", "0.0, 0.5", "[0.0000, 0.5236]"),
    "asinh": ("The inverse hyperbolic sine of each entry", "0.0, 0.5", "[0.0000, 0.4812]"),
    "atan": ("The arctangent of each entry", "0.0, 0.5", "[0.0000, 0.4636]"),
    "atanh": ("The inverse hyperbolic tangent of each entry", "0.0, 0.5", "[0.0000, 0.5493]"),
    "ceil": ("Round each entry up to an integer", "0.0, 0.5", "[0., 1.]"),
    "celu": ("The CELU activation of each entry: max(0, x) + min(0, alpha * (exp(x / alpha) - 1))", "0.0, -1.0", "[ 0.0000, -0.6321]"),
    "conj": ("The complex conjugate of each entry", "0.0, 1 + 2j", "[0.+0.j, 1.-2.j]"),
    "cos": ("The cosine of each entry", "0.0, 0.5", "[1.0000, 0.8776]"),
    "cosh": ("The hyperbolic cosine of each entry", "0.0, 0.5", "[1.0000, 1.1276]"),
    "deg2rad": ("Convert each entry from degrees to radians", "0.0, 180.0", "[0.0000, 3.1416]"),
    "digamma": ("The logarithmic derivative of the gamma function at each entry", "0.0, 0.5", "[   -inf, -1.9635]"),
    "erf": ("The error function of each entry", "0.0, 0.5", "[0.0000, 0.5205]"),
    "erfc": ("The complementary error function of each entry, 1 - erf(x)", "0.0, 0.5", "[1.0000, 0.4795]"),
    "erfinv": ("The inverse error function of each entry", "0.0, 0.5", "[0.0000, 0.4769]"),
    "exp": ("The exponential of each entry", "0.0, 0.5", "[1.0000, 1.6487]"),
    "exp2": ("2 to the power of each entry", "0.0, 0.5", "[1.0000, 1.4142]"),
    "expm1": ("The exponential of each entry, minus 1", "0.0, 0.5", "[0.0000, 0.6487]"),
    "floor": ("Round each entry down to an integer", "0.0, -0.5", "[ 0., -1.]"),
    "frac": ("The fractional part of each entry", "0.0, 1.25", "[0.0000, 0.2500]"),
    "hardshrink": ("Set entries with absolute values of at most lambd to 0", "0.25, 0.75", "[0.0000, 0.7500]"),
    "i0": ("The modified Bessel function of the first kind, of order 0, at each entry", "0.0, 0.5", "[1.0000, 1.0635]"),
    "imag": ("The imaginary part of each entry of a complex tensor", "0.0, 1 + 2j", "[0., 2.]"),
    "isfinite": ("Whether each entry is finite", "0.0, torch.inf", "[ True, False]"),
    "isinf": ("Whether each entry is infinite", "0.0, torch.inf", "[False,  True]"),
    "isnan": ("Whether each entry is NaN", "0.0, torch.nan", "[False,  True]"),
    "isneginf": ("Whether each entry is -inf", "0.0, -torch.inf", "[False,  True]"),
    "isposinf": ("Whether each entry is inf", "0.0, torch.inf", "[False,  True]"),
    "lgamma": ("The logarithm of the absolute value of the gamma function at each entry", "0.0, 0.5", "[   inf, 0.5724]"),
    "log": ("The natural logarithm of each entry", "0.0, 0.5", "[   -inf, -0.6931]"),
    "log10": ("The logarithm of each entry to base 10", "0.0, 0.5", "[   -inf, -0.3010]"),
    "log1p": ("The natural logarithm of 1 plus each entry", "0.0, 0.5", "[0.0000, 0.4055]"),
    "log2": ("The logarithm of each entry to base 2", "0.0, 0.5", "[-inf, -1.]"),
    "logical_not": ("Whether each entry is 0", "0.0, 0.5", "[ True, False]"),
    "logit": ("The logit of each entry, log(x / (1 - x))", "0.0, 0.75", "[  -inf, 1.0986]"),
    "nan_to_num": ("Replace entries that are NaN or infinite by finite numbers", "0.5, torch.nan", "[0.5000, 0.0000]"),
    "neg": ("The negative of each entry", "0.0, 0.5", "[ 0.0000, -0.5000]"),
    "positive": ("The entries themselves, as the operator + of one operand", "0.0, 0.5", "[0.0000, 0.5000]"),
    "rad2deg": ("Convert each entry from radians to degrees", "0.0, torch.pi", "[  0., 180.]"),
    "real": ("The real part of each entry", "0.0, 1 + 2j", "[0., 1.]"),
    "reciprocal": ("1 divided by each entry", "0.0, 0.5", "[inf, 2.]"),
    "relu": ("The rectified linear unit of each entry, max(0, x)", "0.5, -0.5", "[0.5000, 0.0000]"),
    "round": ("Round each entry to the nearest integer, and halves to even integers", "0.0, 1.25", "[0., 1.]"),
    "rsqrt": ("1 divided by the square root of each entry", "0.0, 0.5", "[   inf, 1.4142]"),
    "selu": ("The SELU activation of each entry", "0.0, -1.0", "[ 0.0000, -1.1113]"),
    "sgn": ("The sign of each entry, x / abs(x) for complex x", "0.0, 4j", "[0.+0.j, 0.+1.j]"),
    "sigmoid": ("The logistic function of each entry, 1 / (1 + exp(-x))", "0.0, 0.5", "[0.5000, 0.6225]"),
    "sign": ("The sign of each entry: -1, 0 or 1", "0.0, -2.0", "[ 0., -1.]"),
    "signbit": ("Whether the sign bit of each entry is set", "0.0, -2.0", "[False,  True]"),
    "sin": ("The sine of each entry", "0.0, 0.5", "[0.0000, 0.4794]"),
    "sinc": ("The normalized sinc of each entry, sin(pi * x) / (pi * x)", "0.0, 0.5", "[1.0000, 0.6366]"),
    "sinh": ("The hyperbolic sine of each entry", "0.0, 0.5", "[0.0000, 0.5211]"),
    "sqrt": ("The square root of each entry", "0.0, 4.0", "[0., 2.]"),
    "square": ("The square of each entry", "0.0, 3.0", "[0., 9.]"),
    "tan": ("The tangent of each entry", "0.0, 0.5", "[0.0000, 0.5463]"),
    "tanh": ("The hyperbolic tangent of each entry", "0.0, 0.5", "[0.0000, 0.4621]"),
    "trunc": ("Round each entry towards 0", "0.0, -1.5", "[ 0., -1.]"),
}
FURTHER = {  # arguments after the tensor
    "celu": "``alpha=1.0``, the scale of negative entries; and ``inplace=False``, as for relu.",
    "hardshrink": "``lambd=0.5``: the threshold.",
    "logit": "``eps=None``: if given, entries are clamped to [eps, 1 - eps] first.",
    "nan_to_num": "``nan=0.0``, ``posinf`` and ``neginf``: replacements of NaN, inf and -inf; by default, extreme finite numbers.",
    "relu": "``inplace=False``: whether to overwrite the values of ``input``, unless they are a leaf that requires grad.",
    "round": "``decimals=0``: the number of decimal places.",
    "selu": "``inplace=False``, as for relu.",
}


def _documentation(name: str, instead: str = "") -> str:
    """The docstring of a function of one tensor; ``instead``: what to use instead of a function with a dense result."""
    meaning, given, shown = MEANINGS.get(name, (f"torch's {name} of each entry", "", ""))
    example = (
        f">>> A = ns.from_torch(torch.tensor([{given}]))\n    >>> ns.{name}(A){'' if instead else '.to_dense()'}\n    tensor({shown})\n    "
        if given
        else ""
    )
    return f"""{meaning}; {"dense, because the value at 0 is not 0" if instead else "the result has the pattern of ``input``"}.

    Args:
        input: a SparseTensor or a sparse torch tensor; dense tensors go to torch's {name}.
        *args, **kwargs: {FURTHER.get(name, "no further arguments." if given else f"further arguments of torch's {name}.")}

    Returns:
        {f"A dense tensor. {instead}" if instead else "A SparseTensor, or one of torch's sparse tensors if ``input`` is one."}

    Raises:
        OperandError: an argument is unknown to torch's {name}.
        RuntimeError: torch's {name} does not support the data type.
        UnsupportedError: ``out`` is given{", or within ``ns.strict()``" if instead else ""}.

    {example}"""


def _of_values(name: str) -> Callable[..., Any]:
    torch_function = torchs(name)
    at = _place_of_inplace(name)

    def function(input: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        inplace = kwargs.pop("inplace", False)
        if at is not None and len(args) > at:
            args, inplace = (*args[:at], *args[at + 1 :]), args[at]
        at_stored = at_entries(input.pattern, lambda values: torch_function(values, *args, **kwargs), input._values)
        return written(input, at_stored) if inplace else SparseTensor(input.pattern, at_stored)

    return with_name(function, name, _documentation(name))


def _place_of_inplace(name: str) -> int | None:
    """The index of ``inplace`` among the arguments after the tensor, in torch.nn.functional's function; None if it has no such argument.

    >>> _place_of_inplace("leaky_relu"), _place_of_inplace("sin")
    (1, None)
    """
    code = getattr(getattr(functional, name, None), "__code__", None)  # inspect.signature would take 1 ms for all functions
    return code.co_varnames.index("inplace") - 1 if code is not None and "inplace" in code.co_varnames else None


def of_dense(name: str, documentation: str = "") -> Callable[..., Any]:
    """A function that makes the tensor dense and calls torch's function, which is nonzero at 0 unless it is documented here."""
    torch_function = torchs(name)
    applied = f"A.with_values({'torch' if hasattr(torch, name) else 'F'}.{name}(A.values))"
    hint = "" if documentation else f"{applied} applies it to the stored entries only, "
    suggestion = f"{hint}A.to_dense() requests a dense tensor"

    def function(input: SparseTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch_function(densified(input, name, suggestion), *args, **kwargs)

    return with_name(
        function, name, documentation or _documentation(name, f"``{applied}`` applies the function to the stored entries only.")
    )


def dropout(
    input: SparseTensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool | None = None
) -> SparseTensor:
    """Set stored entries to 0 with probability ``p``, and divide the other entries by ``1 - p``; the pattern does not change.

    Args:
        input: a SparseTensor.
        p: the probability of an entry to become 0.
        training: False returns the entries unchanged.
        inplace: whether to overwrite the values of ``input``.
        train: replaces ``training``; the name in torch.dropout.

    Returns:
        A SparseTensor with the pattern of ``input``; entries that became 0 stay stored. With ``inplace``, ``input`` itself.

    Raises:
        UnsupportedError: ``inplace`` is True, and ``input.values`` is a leaf that requires grad.
        ValueError: ``p`` is not between 0 and 1.

    >>> import numscorch as ns
    >>> ns.dropout(ns.from_torch(torch.eye(2)), 0.5, training=False).values
    tensor([1., 1.])
    """
    values = functional.dropout(input._values, p, training if train is None else train)
    return written(input, values) if inplace else SparseTensor(input.pattern, values)


def written(input: SparseTensor, values: torch.Tensor) -> SparseTensor:
    """Replace the tensor's values: overwrite them, or store a new tensor of values if autograd may need the old one.

    Raises:
        UnsupportedError: the values cannot be cast to the tensor's data type; or the tensor's values are a leaf that requires
            grad, because its gradient and optimizer would lose new values.
    """
    if torch.is_grad_enabled() and input._values.requires_grad and input._values.is_leaf:
        raise UnsupportedError(
            f"{input} would be written in place, but its values are a leaf that requires grad: write within torch.no_grad(), "
            "or assign new ones to A.values"
        )
    if not torch.can_cast(values.dtype, input.dtype):
        raise UnsupportedError(f"a result of {values.dtype} can't be written into {input}: use the operator without the underscore")
    values = values.to(input.dtype)
    if torch.is_grad_enabled() and (values.requires_grad or input._values.requires_grad):
        input.values = values
    else:
        input._values.copy_(values)
    return input


UNARY: dict[str, Callable[..., Any]] = {
    **{name: (_of_values if keeps_zero(form) else of_dense)(name) for name, form in OF_ONE_TENSOR.items()},
    **{name: _of_values(name) for name in WITHOUT_FORM.split()},
    **{name: of_dense(name) for name in ("digamma", "i0", "lgamma")},
    "dropout": dropout,
}
