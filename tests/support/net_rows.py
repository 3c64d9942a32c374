"""Sample calls of every public function and method, as text: names, and their arguments by role.

A token is a tensor by its letter, or a number, size, index or mask by its role. Sizes are those of a 4 x 6 matrix, as ``m`` and ``n``:

    S, R      sparse matrices, m x n          D      dense matrix, m x n        k   index of rows
    Q         sparse matrix, n x m            X      dense matrix, n x 3        K   index of columns, one row for each row of S
    P         sparse matrix, m x m            v, u   dense vectors, n and m     M   mask, m x n
    W         sparse tensor, 2 x m x n        Y      dense tensor, 2 x n x 3    N   mask of n columns
    s         sparse vector, n                H      dense tensor, 2 x m x n    B   sparse mask, m x n
    dim:0     a dimension, or a tuple of them
    num:2.5   a number                        int:1  a count, a position, an offset
    size:m,2  sizes                           =...   any other Python value
    [S R]     a list of tokens

``name=token`` is a keyword argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FLOATS = (
    "acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cos cosh deg2rad digamma erf erfc erfinv exp exp2 "
    "expm1 i0 lgamma log log10 log1p log2 logit rad2deg reciprocal rsqrt sigmoid sin sinc sinh sqrt tan tanh"
)
UNARY = (
    f"{FLOATS} abs absolute ceil fix floor frac logical_not nan_to_num neg negative relu round sgn sign square trunc triu tril angle "
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus softshrink softsign "
    "tanhshrink positive signbit real conj isfinite isinf isnan isneginf isposinf adjoint clone detach contiguous cpu argwhere nonzero "
    "atleast_1d atleast_2d atleast_3d flatten ravel fliplr flipud squeeze t zeros_like ones_like empty_like rand_like randn_like "
    "bfloat16 bool byte cdouble cfloat char double float half int long short tolist numel nelement ndimension element_size "
    "get_device is_complex is_floating_point is_signed is_contiguous is_shared to_sparse to_sparse_coo to_sparse_csr to_sparse_csc "
    "stride dense_dim sparse_dim type share_memory_ zero_"
)
OF_OPERANDS = (
    "add sub mul div subtract multiply divide true_divide eq ne gt ge lt le greater less not_equal logical_and logical_or logical_xor "
    "remainder fmod floor_divide maximum minimum fmax fmin hypot atan2 arctan2 copysign logaddexp logaddexp2 xlogy isclose"
)
LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss poisson_nll_loss binary_cross_entropy_with_logits kl_div"
REDUCTIONS = "sum mean amax amin max min prod all any argmax argmin nansum norm var std count_nonzero"

TEXT = f"""
{UNARY}: S
{OF_OPERANDS}: S D | D S | S R | S v
add sub mul div pow eq gt remainder fmod floor_divide subtract true_divide xlogy: S num:2
pow: S D | num:2 S | S R
bitwise_left_shift bitwise_right_shift: S.int int:2
clamp clip: S num:0.5 num:1.5 | S D | S R D
clamp_max clamp_min: S num:0.5 | S D
{LOSSES}: S D | S R
binary_cross_entropy: S.share M.float
cross_entropy: S k.rows
cosine_similarity: S D dim:1 | S R
dist: S R | S D
cdist: S X.t
normalize: S | S num:1 dim:0
lerp: S R num:0.3 | S D D
addcmul: S R D value=num:2 | D S R
where: B S D | M S R | M S num:0
masked_fill: S M num:2 | S B num:0 | S N num:1
masked_select: S M | S B | S N
dropout: S num:0.5 =False
{REDUCTIONS}: S | S dim:1
sum mean amax amin nansum norm var std count_nonzero: W dim:0 | W dim:1 | W dim:(0,2)
sum mean amax amin prod all any argmax: S dim:0 keepdim==True
logsumexp: S dim:1 | W dim:(0,1)
std_mean var_mean: S | S dim:0
aminmax: S | S dim==None
cumsum cumprod logcumsumexp: S dim:1 | S dim:0
cummax cummin: S dim:1
softmax log_softmax: S dim:1
topk: S int:2 dim:1
diff: S | S int:1 dim:0
trace: P
mm matmul: S X | S Q | X.t Q
matmul: S v | u S | W Y | W X
mv: S v
bmm: W Y
dot vdot: s v | v s
inner: S v | S R
outer ger: s u | u s
addmm: D.3 S X beta=num:2 alpha=num:3
addmv: u S v beta=num:2
addr: S u v alpha=num:2
baddbmm: H.3 W Y
addbmm: D.3 W Y
linear: X.t S | X.t S u
tensordot: S X dims=int:1
chain_matmul: S X
kron: S R | S u
matrix_power: P int:3
block_diag: S D s
cat concat concatenate: [S R] | [S R] dim:1
hstack vstack row_stack dstack column_stack stack: [S R]
stack: [S R] dim:1
transpose swapaxes swapdims: S dim:0 dim:1
movedim moveaxis: S dim:0 dim:1
permute: S size:(1,0) | S dim:1 dim:0
reshape view: S size:(n,m) | S size:(-1,) | W size:(2*m,n)
reshape_as view_as: S X.turned
expand_as: s D
unsqueeze: S dim:0 | S dim:-1
flatten: W dim:0 dim:1
unflatten: S dim:1 size:(2,n//2)
expand: s size:(m,n)
broadcast_to: s size:(m,n)
sum_to_size: S size:(1,n)
repeat tile: S size:(2,1)
repeat_interleave: S int:2 dim:0 | S repeats dim:0
flip: S dim:(0,1)
roll: S int:1 dim:1 | S int:2
rot90: S int:1
chunk: S int:2 dim:1
split: S int:2 dim:1 | S =[1,n-1] dim:1
split_with_sizes: S =[1,n-1] dim:1
tensor_split: S int:3 dim:1 | S =[1,3] dim:1
hsplit vsplit: S int:2
unbind: S dim:0
select: S dim:0 int:1
narrow: S dim:1 int:1 int:2
diagonal diag: S | S int:1
diag: s
eliminate_zeros: S
greater_equal less_equal: S D | S R | S num:2
diag_embed: S
triu tril: S int:1
index_select: S dim:0 k | S dim:1 k
gather: S dim:1 K
take: S K
take_along_dim: S K dim:1
isin: S values | S v
allclose equal: S R | S D
type_as: S D | S R
to_sparse_bsr to_sparse_bsc: S size:(1,1)
full_like: S num:2
new_full: S size:(2,2) num:3
new_empty new_ones new_zeros: S size:(2,3)
new_tensor: S =[1.0,2.0]
copy_: S R.same
add_ sub_: S R.same
pad: S size:(1,-1,0,2)
imag: S.complex
"""

LATER = {  # operators that are not called here, and why
    **dict.fromkeys(("ccol_indices", "col_indices", "crow_indices", "row_indices"), "an index array of one layout"),
    "cuda": "a device that tests lack",
    "is_coalesced": "a fact of the format, without a dense counterpart",
    **dict.fromkeys(("register_hook", "retain_grad"), "hooks of autograd"),
}


@dataclass(frozen=True)
class Row:
    """A sample call: the function's name, or a function itself, and the tokens of its arguments."""

    name: str
    tokens: tuple[str, ...]
    call: Callable[..., Any] | None = None
    dense: Callable[..., Any] | None = None
    is_plain: bool = False  # no argument is a SparseTensor; the oracle is the call with ordinary arguments unless ``dense`` is given
    number: int = 1  # among calls with these tokens

    def __str__(self) -> str:
        return f"{self.name}({' '.join(self.tokens)})" + f" {self.number}" * (self.number > 1)


def rows_of_text(text: str = TEXT) -> list[Row]:
    rows = []
    for line in text.strip().splitlines():
        names, _, calls = line.partition(": ")
        for name in names.split():
            rows += [Row(name, tuple(call.split())) for call in calls.split("|")]
    return rows


def getitem_row(token: str, call: Callable[..., Any] = lambda S, key: S[key]) -> Row:
    return Row("getitem", ("S", token), call)


PYTHON = [
    *(
        Row(name, ("S", other), call)
        for other in ("D", "R", "num:2", "v")
        for name, call in {
            "S + x": lambda S, x: S + x,
            "x + S": lambda S, x: x + S,
            "S - x": lambda S, x: S - x,
            "x - S": lambda S, x: x - S,
            "S * x": lambda S, x: S * x,
            "x * S": lambda S, x: x * S,
            "S / x": lambda S, x: S / x,
            "x / S": lambda S, x: x / S,
            "S ** x": lambda S, x: S**x,
            "S // x": lambda S, x: S // x,
            "S % x": lambda S, x: S % x,
            "S == x": lambda S, x: x == S,
            "S != x": lambda S, x: x != S,
            "S < x": lambda S, x: x > S,
            "x >= S": lambda S, x: x >= S,
        }.items()
    ),
    *(Row("S @ x", ("S", other), lambda S, x: S @ x) for other in ("X", "v", "Q")),
    *(Row("x @ S", (other, "S"), lambda x, S: x @ S) for other in ("u", "D.t")),
    *(Row("and", ("B", other), lambda S, x: S & x) for other in ("B", "M")),
    *(Row("or", ("B", other), lambda S, x: S | x) for other in ("B", "M")),
    *(Row("xor", ("B", other), lambda S, x: S ^ x) for other in ("B", "M")),
    Row("x / S", ("W", "num:2"), lambda S, x: x / S),
    Row("invert", ("B",), lambda S: ~S),
    Row("neg", ("S",), lambda S: -S),
    Row("abs", ("S",), lambda S: abs(S)),
    Row("contains", ("S", "num:2"), lambda S, x: x in S),
    Row("iter", ("S",), lambda S: list(S)),
    Row("len", ("S",), lambda S: len(S)),
    Row("item", ("S",), lambda S: S[:1, :1].item()),
    *(getitem_row(key) for key in ("int:1", "k", "M", "B", "N.rows", "=slice(0,2)", "=slice(None,None,2)", "=None", "=Ellipsis", "=()")),
    getitem_row("k", lambda S, k: S[:, k]),
    getitem_row("k", lambda S, k: S[k, k]),
    getitem_row("k", lambda S, k: S[k[:, None], k]),
    getitem_row("N", lambda S, N: S[:, N]),
    getitem_row("int:1", lambda S, i: S[..., i]),
    getitem_row("int:1", lambda S, i: S[i:, :i]),
    getitem_row("int:2", lambda S, i: S[::i]),
    getitem_row("=[]", lambda S, key: S[key]),
    Row("getitem", ("H", "B"), lambda H, B: H[:, B]),
    Row("setitem", ("S", "num:0"), lambda S, x: (S.__setitem__(S > 0, x), S)[1]),
    Row("size", ("S", "dim:1"), lambda S, d: S.size(d)),
    Row("where", ("S", "M", "D"), lambda S, M, D: S.where(M, D)),
]
