"""What the sweep over torch's operators expects to differ from torch, and why."""

from __future__ import annotations

# Refusals of numscorch, by their text: each names what is not supported, and what to write instead.
REFUSALS = (
    r"does not take a SparseTensor yet:",
    r"^a SparseTensor has no attribute",
    r"are neither added nor dropped in place: use the operator without the underscore",
    r"^out= of \w+ with a SparseTensor: use the returned tensor",
    r"_ of a dense tensor or a number would store every entry: use \w+, whose result is dense",
    r"^cat of sparse and dense tensors: convert one",
    r"of the stack is a dense tensor beside sparse ones: make it one",
    r"of two sparse tensors: make one dense with \.to_dense\(\)",
    r"^the ellipsis of the operands is missing from the result: write \.\.\. there",
    r"^tensordot of shapes .*: 1 is not \d|^tensordot of shapes .*: \d+ is not 1",
    r"^cdist of .*: it takes sparse matrices",
    r"^cdist with p=.*: use p=2, or \.to_dense\(\)",
    r"^pad with mode=.*: pad with 0, or F\.pad",
    r"^matrix_power with n=.*: give a positive n, or use \.to_dense\(\)",
    r"^norm with p=.* of a SparseTensor",
    r"^torch\.sparse\.mm with reduce=.*: use einsum",
    r"^sort of a SparseTensor puts the coordinates of each row in order",
    r"^((max|min)=|logaddexp) of complex64 values: convert",
    r"works on bits, but SparseTensors support it for bool only: use logical_",
)

# Results that are random, or not initialised: only shapes and data types are compared.
RANDOM = r"""(?x)
    .*rand.* | .*dropout.* | bernoulli | normal(\..*)? | cauchy | exponential | geometric | log_normal | uniform | multinomial
    | .*empty.* | nn\.functional\.rrelu | nn\.functional\.gumbel_softmax | pca_lowrank | svd_lowrank"""

# Functions of the stored entries alone, as their documentation says: shapes and data types are compared.
OF_STORED = r"(log_)?softmax(\..*)?|_softmax_backward_data|nn\.functional\.softmin.*|(ones|full)_like"

# Of equal entries, any may be the one whose index is returned.
TIES = ("topk",)

# Quotients, which are 0 where the numerator stores nothing, also where torch has 0 / 0.
QUOTIENTS = r"(true_)?div(\..*)?|__rdiv__|fmod|remainder|__rmod__|floor_divide|true_divide"

# Operators and outcomes that differ on purpose.
KNOWN: tuple[tuple[str, str], ...] = (
    ("addr", r"^wrong: .*nan at index"),  # NaN times an entry that is not stored is 0
    ("clamp", r"^wrong: gradient"),  # where both bounds are equal, torch gives neither one a gradient
    ("xlogy|remainder", r"(?s)^wrong: gradient: .*nan at index"),  # 0 / 0 in torch's gradient, where the numerator stores nothing
    ("__getitem__", r"^wrong: shape"),  # torch reads a vector of fewer than 32 entries as a tuple of indices, before it dispatches
)
