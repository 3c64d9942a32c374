"""Sweep over torch's operator samples (``op_db``) with sparse operands, compared with torch on dense tensors.

To print counts per operator: ``python tests/support/op_sweep.py --count 40 --operators "linalg.*"``.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
from op_sweep_rules import KNOWN, OF_STORED, QUOTIENTS, RANDOM, REFUSALS, TIES

import numscorch as ns
from numscorch.errors import NumscorchError
from numscorch.ir.levels import Compressed, Dense
from numscorch.ir.padded import Bitmap, Fixed
from numscorch.runtime.plans import uncompiled

SHARES = {torch.float32: 5, torch.int64: 1, torch.bool: 1, torch.complex64: 1}  # data types and their sampling weights
SAMPLES = 8  # samples read per case of an operator
WAYS = ("all", "first", "later")  # which operands are sparse
GOOD = ("same", "refused", "both raise")


def blocks(order: int) -> ns.Format:
    """Format with blocks of 2 x 2 in the last two dimensions, or blocks of 2 for a vector."""
    names = [f"i{at}" for at in range(order)]
    outer = [f"{name}: dense" for name in names[:-2]]
    pair = names[-2:]
    outer += [f"{name} // 2: {'compressed' if name == pair[-1] else 'dense'}" for name in pair]
    return ns.Format(f"({', '.join(names)}) -> ({', '.join([*outer, *(f'{name} % 2: dense' for name in pair)])})")


FORMATS: dict[str, Callable[[int], ns.Format]] = {
    "COO": ns.COO,
    "CSR": lambda order: ns.Format((*[Dense()] * (order - 1), Compressed())),
    "CSC": lambda order: ns.Format((*[Dense()] * (order - 1), Compressed())).permuted(tuple(range(order))[::-1]),
    "DCSR": ns.CSF,
    "blocks": blocks,
    "ELL": lambda order: ns.Format((*[Dense()] * (order - 1), Fixed())),
    "bitmap": lambda order: ns.Format((*[Dense()] * (order - 1), Bitmap())),
}


@dataclass(frozen=True)
class SampleCase:
    """A sample of an operator, with sparse operands."""

    operator: str
    dtype: torch.dtype
    sample: int
    format: str
    way: str
    variant: str

    def __str__(self) -> str:
        return "|".join((self.operator, str(self.dtype).removeprefix("torch."), str(self.sample), self.format, self.way, self.variant))

    @classmethod
    def read(cls, text: str) -> SampleCase:
        """Parse the ``str`` of a case."""
        operator, dtype, sample, *rest = text.split("|")
        return cls(operator, getattr(torch, dtype), int(sample), *rest)


@dataclass
class Outcome:
    """Outcome of a case: "same", "refused" and "both raise" pass; "raw error", "other refusal", "wrong" and "accepted" are faults."""

    kind: str
    message: str = ""


@cache
def operators() -> dict[str, Any]:
    """Table of torch operators by name and variant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_utils
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo import core
    for module in (common_utils, core):
        module.extract_test_fn = lambda: None  # it reads the sources of the whole stack to find a unittest, which takes half of the time
    return {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}


def _calls(op: Any) -> dict[str, Callable[..., Any]]:
    """Variants of an operator: function, and if available method, in-place method and Python operator."""
    calls: dict[str, Callable[..., Any]] = {}
    variants = {"function": op.op, "method": op.method_variant, "inplace": op.inplace_variant, "operator": op.operator_variant}
    for variant, theirs in variants.items():
        name = getattr(theirs, "__name__", "")
        if variant in ("method", "inplace") or getattr(torch.Tensor, name, None) is theirs is not None:
            if hasattr(torch.Tensor, name):  # methods of torch.Tensor reject other classes
                calls[variant] = partial(_method, name)
        elif theirs is not None:
            calls[variant] = theirs
    return calls


def _method(name: str, input: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(input, name)(*args, **kwargs)


@cache
def samples(operator: str, dtype: torch.dtype, most: int) -> list[Any]:
    """The first samples of an operator in torch."""
    op = operators()[operator]
    if dtype not in op.dtypes:
        return []
    torch.manual_seed(0)
    random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(islice(op.sample_inputs("cpu", dtype, requires_grad=False), most))


def cases(operator: str, count: int, seed: int = 0) -> Iterator[SampleCase]:
    """Reproducible random cases of an operator."""
    rng = random.Random(f"{operator} {seed}")
    variants = list(_calls(operators()[operator]))
    weights = [6 if variant == "function" else 1 for variant in variants]
    for dtype in rng.choices(list(SHARES), list(SHARES.values()), k=count):
        operator_samples = samples(operator, dtype, SAMPLES * count)
        if operator_samples:
            (variant,) = rng.choices(variants, weights)
            yield SampleCase(operator, dtype, rng.randrange(len(operator_samples)), rng.choice(list(FORMATS)), rng.choice(WAYS), variant)


@dataclass
class Operands:
    """Replaces tensors among arguments by sparse tensors, and by dense tensors with the same zeros."""

    format: str
    which: Callable[[int], bool]
    trained: bool
    rng: torch.Generator
    count: int = 0
    pairs: list[tuple[ns.SparseTensor, torch.Tensor]] = field(default_factory=list)

    def __call__(self, value: Any) -> tuple[Any, Any]:
        """A value for numscorch and for torch."""
        if isinstance(value, list | tuple):
            both = [self(item) for item in value]
            kind: Any = type(value) if not hasattr(value, "_fields") else lambda item: type(value)(*item)
            return kind([ours for ours, _ in both]), kind([theirs for _, theirs in both])
        if isinstance(value, dict):
            pairs = {key: self(item) for key, item in value.items()}
            return {key: ours for key, (ours, _) in pairs.items()}, {key: theirs for key, (_, theirs) in pairs.items()}
        if not isinstance(value, torch.Tensor) or not can_be_sparse(value):
            return value, value
        self.count += 1
        return self.sparse(value.detach()) if self.which(self.count - 1) else (value.detach().clone(), value.detach().clone())

    def sparse(self, full: torch.Tensor) -> tuple[ns.SparseTensor, torch.Tensor]:
        full = torch.where(torch.rand(full.shape, generator=self.rng) < 0.6, full, torch.zeros((), dtype=full.dtype)).contiguous()
        tensor = ns.from_torch(full, FORMATS[self.format](full.ndim))
        if self.trained and (full.is_floating_point() or full.is_complex()):
            full = full.requires_grad_()
            tensor = tensor.with_values(tensor.values.clone().requires_grad_())
            self.pairs.append((tensor, full))
        return tensor, full


def can_be_sparse(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and value.ndim > 0 and value.dtype in SHARES and not value.is_quantized


def run(case: SampleCase, count: int = 0) -> Outcome | None:
    """Run a case in numscorch and in torch; None if no operand can be sparse."""
    op, sample = operators()[case.operator], samples(case.operator, case.dtype, SAMPLES * count or case.sample + 1)[case.sample]
    call = _calls(op)[case.variant]
    arguments = (sample.input, *sample.args), sample.kwargs
    tensors = Operands("COO", lambda at: False, False, torch.Generator())
    tensors(arguments)
    later = random.Random(str(case)).randrange(1, tensors.count) if tensors.count > 1 else -1
    which = {"all": lambda at: True, "first": lambda at: at == 0, "later": lambda at: at == later}[case.way]
    if not tensors.count or (case.way == "later" and later < 0):
        return None
    trained = op.supports_autograd and case.variant != "inplace" and case.dtype.is_floating_point
    operands = Operands(case.format, which, trained, torch.Generator().manual_seed(case.sample))
    (ours, our_names), (theirs, their_names) = operands(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, error = attempt(call, theirs, their_names)
        try:
            result = call(*ours, **our_names)
        except Exception as ours_error:
            return None if str(ours_error).startswith("descriptor") else of_error(case, ours_error, error)
        if error is not None:
            return expect("accepted", case, f"torch raises {type(error).__name__}: {str(error)[:150]}")
        return compare(case, result, expected, operands.pairs)


def attempt(call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
    torch.manual_seed(1)
    try:
        return call(*args, **kwargs), None
    except Exception as error:
        return None, error


def of_error(case: SampleCase, ours: Exception, error: Exception | None) -> Outcome:
    """The outcome of a case that raised."""
    message = f"{type(ours).__name__}: {ours}"
    if isinstance(ours, NumscorchError):
        if error is not None or any(re.search(pattern, str(ours)) for pattern in REFUSALS):
            return Outcome("refused" if error is None else "both raise", message)
        return expect("other refusal", case, message)
    if error is not None and isinstance(ours, type(error)):
        return Outcome("both raise", message)
    return expect("raw error", case, message)


def expect(kind: str, case: SampleCase, message: str) -> Outcome:
    """A fault, unless the difference is intentional."""
    is_known = any(re.fullmatch(name, case.operator) and re.search(text, f"{kind}: {message}", re.DOTALL) for name, text in KNOWN)
    return Outcome("same" if is_known else kind, message)


def compare(case: SampleCase, result: Any, expected: Any, pairs: list[tuple[ns.SparseTensor, torch.Tensor]]) -> Outcome:
    """The outcome of a case that succeeds in both libraries."""
    try:
        ours, theirs = list(leaves(result)), list(leaves(expected))
        shallow = bool(re.fullmatch(RANDOM, case.operator) or re.fullmatch(OF_STORED, case.operator))
        is_quotient = re.fullmatch(QUOTIENTS, case.operator) is not None
        assert len(ours) == len(theirs), f"{len(ours)} results, torch {len(theirs)}"
        for at, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            same(left, right, shallow or (at > 0 and case.operator in TIES), is_quotient)
    except AssertionError as error:
        return expect("wrong", case, str(error))
    except Exception as error:
        return expect("raw error", case, f"reading the result: {type(error).__name__}: {error}")
    return Outcome("same") if shallow or not pairs or case.operator in TIES else compare_gradients(case, ours, theirs, pairs)


def compare_gradients(case: SampleCase, ours: list[Any], theirs: list[Any], pairs: list[tuple[ns.SparseTensor, torch.Tensor]]) -> Outcome:
    """The outcome of comparing the gradients at stored entries with torch."""
    differentiable = [at for at, result in enumerate(theirs) if isinstance(result, torch.Tensor) and result.requires_grad]
    if not differentiable:
        return Outcome("same")
    rng = torch.Generator().manual_seed(2)
    upstream = {at: torch.rand(theirs[at].shape, generator=rng).to(theirs[at].dtype) for at in differentiable}
    _, error = attempt(torch.autograd.backward, ([theirs[at] for at in differentiable], [upstream[at] for at in differentiable]), {})
    try:
        dense = {at: dense_result for at in differentiable if (dense_result := dense_of(ours[at])).requires_grad}
        torch.autograd.backward(list(dense.values()), [upstream[at] for at in dense])
    except Exception as ours_error:
        return of_error(case, ours_error, error)
    if error is not None:
        return Outcome("same")
    try:
        for A, full in pairs:
            inside = A.with_values(torch.ones_like(A.values.detach())).to_dense() != 0
            gradient = torch.zeros_like(full) if A.values.grad is None else A.with_values(A.values.grad).to_dense()
            expected = torch.where(inside, full.grad, 0) if full.grad is not None else torch.zeros_like(full)
            same(gradient, expected, False, re.fullmatch(QUOTIENTS, case.operator) is not None)
    except AssertionError as failed:
        return expect("wrong", case, f"gradient: {failed}")
    return Outcome("same")


def dense_of(value: Any) -> Any:
    is_sparse = isinstance(value, ns.SparseTensor) or (isinstance(value, torch.Tensor) and value.layout is not torch.strided)
    return value.to_dense() if is_sparse else value


def leaves(value: Any) -> Iterator[Any]:
    """Results of a call, flattened."""
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def same(result: Any, other: Any, shallow: bool, is_quotient: bool = False) -> None:
    """Raise AssertionError unless a result equals the result of torch; 0 / 0 in a quotient may be 0."""
    if not isinstance(other, torch.Tensor):
        assert result == other or (result != result and other != other), f"{result!r}, torch {other!r}"
        return
    result, other = dense_of(result), dense_of(other)
    assert isinstance(result, torch.Tensor), f"{type(result).__name__}, torch a tensor"
    assert result.shape == other.shape, f"shape {tuple(result.shape)}, torch {tuple(other.shape)}"
    assert result.dtype == other.dtype, f"{result.dtype}, torch {other.dtype}"
    if shallow or not result.numel():
        return
    result, other = result.detach().resolve_conj().resolve_neg(), other.detach().resolve_conj().resolve_neg()
    other = torch.where(other.isnan() & (result == 0), result, other) if is_quotient else other
    finite = other.isfinite() if other.is_floating_point() or other.is_complex() else torch.ones((), dtype=torch.bool)
    size = float(torch.where(finite, other, 0).abs().max()) if other.dtype != torch.bool else 1.0
    torch.testing.assert_close(result, other, rtol=1e-4, atol=1e-5 * max(size, 1.0), equal_nan=True)


def sweep(names: list[str], count: int, seed: int = 0) -> Iterator[tuple[SampleCase, Outcome]]:
    """The outcomes of ``count`` cases per operator, with uncompiled kernels."""
    with uncompiled():
        for name in names:
            refused = 0
            for case in cases(name, count, seed):
                if (outcome := run(case, count)) is None:
                    continue
                yield case, outcome
                refused = refused + 1 if "does not take a SparseTensor" in outcome.message else -count
                if refused == 4:  # assume that all cases are refused
                    break
            samples.cache_clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="cases drawn for each operator")
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    parser.add_argument("--operators", default=".*", help="a pattern of names")
    parser.add_argument("--case", help="one case, as the sweep prints it, with its traceback")
    parser.add_argument("--show", type=int, default=2, help="faults printed for each operator")
    parser.add_argument("--refusals", action="store_true", help="print how often each refusal was met")
    options = parser.parse_args()
    if options.case:
        with uncompiled(), suppress(KeyboardInterrupt):
            print(run(SampleCase.read(options.case)))
        return
    total: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for name in [name for name in operators() if re.fullmatch(options.operators, name)]:
        counts: Counter[str] = Counter()
        for case, outcome in sweep([name], options.count, options.seed):
            counts[outcome.kind] += 1
            if outcome.kind not in GOOD and sum(counts[kind] for kind in counts if kind not in GOOD) <= options.show:
                print(f"  {outcome.kind:<14}{case}   {' '.join(outcome.message.split())[:220]}")
            if outcome.kind in ("refused", "other refusal"):
                refusals[re.sub(r"[\d(].*", "", outcome.message.partition("\n")[0])[:110]] += 1
        total += counts
        if any(kind not in GOOD for kind in counts):
            print(f"{name}: {dict(counts)}")
        sys.stdout.flush()
    print(f"{sum(total.values())} cases: {dict(total)}")
    if options.refusals:
        print(*(f"{number:>6}  {text}" for text, number in refusals.most_common()), sep="\n")


if __name__ == "__main__":
    main()
