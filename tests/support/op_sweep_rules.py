"""Expected differences from torch in the sweep over operators, and their reasons."""

from __future__ import annotations

# Error messages of unsupported calls; each names an alternative.
REFUSALS = (
    r"^(svd_lowrank|pca_lowrank|lobpcg) of a \d-dimensional tensor: give a matrix",
    r"does not take a SparseTensor yet:",
    r"^a SparseTensor has no attribute",
    r"are neither added nor dropped in place: use the operator without the underscore",
    r"^out= of \w+ with a SparseTensor: use the returned tensor",
    r"_ of a dense tensor or a number would store every entry: use \w+, whose result is dense",
    r"^(\w+: )?cat of sparse and dense tensors: convert one",
    r"of the stack is a dense tensor, but others are sparse: make it sparse",
    r"of two sparse tensors: make one dense with \.to_dense\(\)",
    r"^the ellipsis of the operands is missing from the result: write \.\.\. there",
    r"^tensordot of shapes .*: size 1 of dim|^tensordot of shapes .* must equal size 1 of dim",
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

# Random or uninitialised results: only shapes and data types are compared.
RANDOM = r"""(?x)
    .*rand.* | .*dropout.* | bernoulli | normal(\..*)? | cauchy | exponential | geometric | log_normal | uniform | multinomial
    | .*empty.* | nn\.functional\.rrelu | nn\.functional\.gumbel_softmax | pca_lowrank | svd_lowrank"""

# Functions documented to act on stored entries only: shapes and data types are compared.
OF_STORED = r"(log_)?softmax(\..*)?|_softmax_backward_data|nn\.functional\.softmin.*|(ones|full)_like"

# Indices of ties are arbitrary.
TIES = ("topk",)

# Quotients: 0 at unstored entries of the numerator, even where torch computes 0 / 0.
QUOTIENTS = r"(true_)?div(\..*)?|__rdiv__|fmod|remainder|__rmod__|floor_divide|true_divide"

# Operators and outcomes that differ intentionally.
KNOWN: tuple[tuple[str, str], ...] = (
    ("addr", r"^wrong: .*nan at index"),  # NaN times an unstored entry is 0
    ("clamp", r"^wrong: gradient"),  # torch gives no gradient where both bounds are equal
    ("xlogy|remainder", r"(?s)^wrong: gradient: .*nan at index"),  # 0 / 0 in the gradient of torch at unstored entries of the numerator
    ("__getitem__", r"^wrong: shape"),  # torch converts an index vector of fewer than 32 entries to a tuple before dispatch
)
