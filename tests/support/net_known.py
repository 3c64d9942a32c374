"""Cases that failed once, and stay in every run of the net."""

KNOWN = """
S + x(S num:2) | function | float64 scalar | 1
S + x(S num:2) | function | float32 scalar | 1
S ** x(S num:2) | function | int64 scalar | 1
add(S num:2) | function | float64 scalar | 1
sum(S dim:1) | method | NumPy integer | 1
cumsum(S dim:1) | function | NumPy integer | 1
transpose(S dim:0 dim:1) | method | NumPy integer | 1
movedim(S dim:0 dim:1) | method | NumPy integer | 1
roll(S int:1 dim:1) | function | NumPy integer | 1
softmax(S dim:1) | numscorch | an empty tuple | 1
S @ x(S X) | function | SciPy csr_array | 1
S @ x(S X) | function | SciPy coo_matrix | 1
S + x(S D) | function | SciPy csr_array | 1
S ** x(S D) | function | torch coo | 1
S ** x(S R) | function | torch coo first | 0
S % x(S D) | function | torch csr | 1
remainder(S D) | function | torch bsr | 1
remainder(S R) | function | torch csr first | 1
floor_divide(S D) | method | torch csc | 1
logical_or(S D) | method | torch csr | 1
logical_or(S v) | method | NumPy array | 1
logical_and(S D) | numscorch | SciPy csr_array | 1
true_divide(D S) | numscorch | SciPy dia_array | 0
clamp(S D) | function | NumPy array | 1
masked_select(S N) | method | list | 1
masked_select(S M) | function | torch csr | 1
where(M S num:0) | numscorch | NumPy array | 0
take(S K) | numscorch | NumPy array | 1
getitem(S k) 4 | function | NumPy, negative strides | 1
tensor(D) | function | SciPy csr_array | 0
floor_divide(S R) | function | a SparseParameter | 1
logical_xor(S R) | function | a SparseParameter | 1
clamp(S num:0.5 num:1.5) | function | complex number | 1
add(S v) | function | subclass | 1
add(S D) | function | subclass | 1
einsum(v S) | function | subclass | 0
smooth_l1_loss(S D) | function | SciPy csr_array | 1
fuse(S X) | function | SciPy csr_array | 1
fuse(S X) | function | on meta | 1
getitem(S M) | function | uint8 operand | 1
getitem(S N.rows) | function | uint8 operand | 1
getitem(S N) | function | uint8 operand | 1
getitem(S k) | function | as (i, j) -> (i: dense, j: hash) | 0
getitem(S k) 2 | function | as (i, j) -> (j: dense, i: hash) | 0
index_select(S dim:1 k) | function | as (i, j) -> (j: dense, i: hash) | 0
chunk(S int:2 dim:1) | function | as (i, j) -> (j: dense, i: hash) | 0
iter(S) | function | as (i, j) -> (i: dense, j: hash) | 0
numel(S) | method | 2^64 elements | 0
numel(S) | function | 2^63 elements | 0
nelement(S) | method | 2^64 elements | 0
amax(S dim:1) | function | 2^62 columns | 0
var(S) | function | 2^64 elements | 0
std(S) | function | 2^66 elements | 0
logsumexp(S dim:1) | function | 2^62 columns | 0
hstack([S R]) | function | 2^62 columns | 0
cat([S R]) | function | 2^62 rows | 0
logsumexp(S dim:1) | function | no columns | 0
mean(W dim:1) | function | no rows, in lists | 0
mean(W dim:1) | function | no entries, in lists | 0
empty_like(S) | function | torch.func.grad | 0
x / S(W num:2) | function | training, dense last | 0
all(S dim:1) | function | an empty tuple | 1
any(S dim:1) | method | an empty list | 1
S @ x(S v) | function | a dual tensor | 0
einsum(S X) | function | a dual tensor | 0
sum(S) | function | torch.func.jvp | 0
softmax(S dim:1) | function | a dual tensor | 0
add(S D) | function | a dual tensor | 1
add(S D) | function | torch.func.jvp | 0
triu(S) | function | torch.func.jvp | 0
tril(S) | function | torch.func.grad | 0
S @ x(S X) | function | made within torch.func.grad | 1
S @ x(S X) | function | made within torch.func.vjp | 1
S + x(S D) | function | made within torch.func.jacrev | 1
matmul(S X) | function | batched gradients | 1
add(S D) | function | batched gradients | 1
S / x(S D) | function | batched gradients | 1
S @ x(S X) | function | make_fx | 1
add(S D) | function | make_fx | 1
logical_or(D S) | function | make_fx | 0
S @ x(S X) | function | fake mode | 1
add(S D) | function | fake mode | 1
atleast_3d(S) | function | inference mode first | 0
std(S dim:1) | function | inference mode first | 0
remainder(S D) | function | inference mode first | 0
arctanh(S) | function | meta device | 0
add(S R) | function | meta device | 0
rearrange(S int:2) | function | meta device | 0
erf(S) | function | meta device | 0
where(B S D) | function | meta device | 0
masked_fill(S M num:2) | function | meta device | 0
argmax(S) | function | meta device | 0
count_nonzero(S) | function | meta device | 0
cumsum(S dim:1) | function | meta device | 0
topk(S int:2 dim:1) | function | meta device | 0
reshape(S size:(n,m)) | function | meta device | 0
index_select(S dim:0 k) | function | meta device | 0
gather(S dim:1 K) | function | meta device | 0
iter(S) | function | meta device | 0
item(S) | function | meta device | 0
to_torch(S) | function | meta device | 0
getitem(S k) | function | meta device | 0
getitem(S M) | function | meta device | 0
S < x(S num:2) | function | meta device | 0
einsum(s s s) | function | training without entries | 0
einsum(s s s) | function | training without entries | 1
evaluate(D) | function | no rows | 0
evaluate(D) | function | no entries | 0
einsum(s S) | function | int32, all stored | 0
evaluate(S) 2 | function | of complex64 | 0
evaluate(S D) | function | of int64 | 0
mse_loss(S R) | function | as (i, j) -> (i: dense, j: dense) | 0
l1_loss(S R) | function | as (i, j) -> (i: dense, j: dense) | 0
copy_(S R.same) | method | as (i, j) -> (i: dense, j: dense) | 0
cosine_similarity(S D dim:1) | function | uint8 operand | 1
zeros(size:m,n) | function | no sizes | 0
""".strip().splitlines()
COMPILED = """
amax(S) | function | 2^63 elements | 0
amax(S) | function | 2^64 elements | 0
amin(S) | function | 2^64 elements | 0
prod(S) | function | 2^64 elements | 0
all(S) | function | 2^64 elements | 0
einsum(S) 5 | function | 2^64 elements | 0
x / S(S num:2) | function | of complex64 | 0
""".strip().splitlines()  # only compiled kernels failed: Python's integers do not overflow
