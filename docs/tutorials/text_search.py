# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Text search: the best n of each row of a product
#
# At the end of this tutorial, you have a search engine for the documentation of numpy, scipy and torch: it answers
# queries, finds the nearest neighbors of each function, and lists near-duplicates. You need numscorch, torch, numpy,
# scipy, scikit-learn and matplotlib, and you should know sparse matrices in SciPy.

# %%
import importlib
import inspect

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.sparse import csgraph
from sklearn.feature_extraction.text import TfidfVectorizer

import numscorch as ns
from numscorch.sparsify import threshold, topk

# %% [markdown]
# ## Documents
#
# A document is the docstring of a public function. Names are sorted, so each run sees the documents in the same order.
# Aliases such as `numpy.abs` and `numpy.absolute` stay in the collection: the last part of this tutorial finds them.

# %%
MODULES = ["numpy", "numpy.fft", "numpy.linalg", "numpy.polynomial.polynomial"]
MODULES += ["scipy.fft", "scipy.integrate", "scipy.interpolate", "scipy.linalg", "scipy.ndimage", "scipy.optimize"]
MODULES += ["scipy.signal", "scipy.sparse.linalg", "scipy.spatial.distance", "scipy.special", "scipy.stats"]
MODULES += ["torch", "torch.fft", "torch.linalg", "torch.nn.functional", "torch.special"]


def docstrings(module: str) -> dict[str, str]:
    """The docstrings of the functions of a module, by name; short ones are left out."""
    loaded = importlib.import_module(module)
    public = getattr(loaded, "__all__", [name for name in dir(loaded) if not name.startswith("_")])
    objects = {name: getattr(loaded, name) for name in sorted(public)}
    functions = {name: f for name, f in objects.items() if callable(f) and not inspect.isclass(f) and hasattr(f, "__name__")}
    texts = {f"{module}.{name}": inspect.getdoc(f) or "" for name, f in functions.items()}
    return {name: text for name, text in texts.items() if len(text) > 200}


documents = {name: text for module in MODULES for name, text in docstrings(module).items()}
names = list(documents)
print(len(names), "documents, such as", names[0], "and", names[-1])

# %% [markdown]
# ## A sparse matrix of words
#
# TF-IDF gives each word of a document a weight, which is large for words that few documents have. scikit-learn returns a
# CSR matrix of SciPy with a row for each document. Rows have unit length, so the product of two rows is their cosine
# similarity.

# %%
words = TfidfVectorizer(dtype=np.float32, min_df=2, sublinear_tf=True, stop_words="english", token_pattern="[a-z]{3,}")
S = words.fit_transform(documents.values())
D = ns.from_scipy(S)
print(D)

# %% [markdown]
# ## Answer queries
#
# A query is a short document. The similarities of all queries and all documents are the product `Q @ D.T`, as an einsum
# `ij,kj->ik`. A search needs only the best entries of each row of this product. The argument `sparsifier=topk(3)` keeps
# the three largest entries of each row inside the kernel, before the row is stored. (It compares absolute values, but
# similarities are never negative.)

# %%
queries = ["sort the elements along an axis", "solve a system of linear equations", "eigenvalues of a symmetric matrix"]
Q = ns.from_scipy(words.transform(queries))
best = ns.einsum("ij,kj->ik", Q, D, sparsifier=topk(3))
print(best)

# %% [markdown]
# The result is sparse, and its rows are in no particular order. The result for a few queries is small, so a dense copy is
# the easiest way to sort it:

# %%
scores, found = best.to_dense().topk(3)
for query, row, columns in zip(queries, scores.tolist(), found.tolist(), strict=True):
    print(f"{query}:")
    print("   ", ", ".join(f"{names[k]} {score:.2f}" for k, score in zip(columns, row, strict=True)))

# %% [markdown]
# SciPy has no such product. It computes all similarities, and NumPy sorts them. The best three scores are the same:

# %%
complete = (words.transform(queries) @ S.T).toarray()
expected = -np.sort(-complete, axis=1)[:, :3]
print("same scores:", torch.allclose(scores, torch.from_numpy(expected), atol=1e-6))

# %% [markdown]
# `explain` takes the same arguments, and shows the choices of the compiler. The line about the format of the result tells
# whether the kernel keeps the largest entries, or whether they are chosen from the complete product afterwards:

# %%
story = str(ns.explain("ij,kj->ik", Q, D, sparsifier=topk(3)))
print(next(line for line in story.splitlines() if "infer_format" in line))

# %% [markdown]
# ## The neighbors of every document
#
# Now every document is a query. Almost all pairs of docstrings share a word, such as "returns", so the complete product
# is nearly dense. With `topk(2)`, the kernel stores two entries for each document: the document itself and its nearest
# neighbor.

# %%
product = S @ S.T
nearest = ns.einsum("ij,kj->ik", D, D, sparsifier=topk(2))
print(f"{product.nnz:,} entries in SciPy's product, {nearest.nnz:,} in the result of numscorch")

# %% [markdown]
# Entries on the diagonal compare a document with itself. The rest are links from documents to neighbors. If three
# documents have the same text, a row can keep two aliases instead of itself.

# %%
rows, columns = nearest.indices()
other = rows != columns
links = ns.from_coo([rows[other], columns[other]], nearest.values[other], nearest.shape, format=ns.CSR)
for name in ("numpy.cumsum", "scipy.linalg.qr", "torch.argmax"):
    row = links[names.index(name)]
    print(f"{name:24} {names[row.indices()[0][0]]} {row.values[0]:.2f}")

# %% [markdown]
# In which library does the nearest neighbor live? `L[i,a]` is 1 if document `i` belongs to library `a`. The number of
# links from library to library is an einsum with three operands, which reads each link once:

# %%
libraries = ["numpy", "scipy", "torch"]
L = torch.tensor([[float(name.startswith(library)) for library in libraries] for name in names])
counts = ns.einsum("ij,ia,jb->ab", links.with_values(torch.ones(links.nnz)), L, L)
print("from / to ", *libraries)
for library, row in zip(libraries, counts.int().tolist(), strict=True):
    print(f"{library:9}", *(f"{count:5}" for count in row))

# %% [markdown]
# In all three libraries, the docstring of many functions is nearly the text of another one:

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
i, _ = links.indices()
for a, library in enumerate(libraries):
    axes.hist(links.values[L[i, a] == 1].numpy(), bins=20, range=(0, 1), histtype="step", density=True, label=library)
axes.set(xlabel="similarity to the nearest other document", ylabel="density")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## Near-duplicates
#
# A threshold is another rule for the entries to keep. `threshold(0.95)` keeps the pairs with a similarity above 0.95. The
# similarity is symmetric, so the upper triangle has each pair once.

# %%
pairs = ns.einsum("ij,kj->ik", D, D, sparsifier=threshold(0.95)).triu(1)
print(pairs)

# %% [markdown]
# `explain` shows a difference to `topk`. For a product of two sparse matrices, the threshold is applied to the complete
# result. Its memory is free again afterwards, but it has to be there. For a larger collection, multiply some rows at a
# time, such as `D[:1000]`.

# %%
story = str(ns.explain("ij,kj->ik", D, D, sparsifier=threshold(0.95)))
print(story.splitlines()[-1])

# %% [markdown]
# SciPy finds the same pairs in its complete product:

# %%
product.data[product.data <= 0.95] = 0
product.eliminate_zeros()
upper = ns.from_scipy(product).triu(1)
print("same pairs:", torch.equal(pairs.indices(), upper.indices()))
print("same scores:", torch.allclose(pairs.values, upper.values, atol=1e-6))

# %% [markdown]
# Pairs form groups, the connected components of a graph. SciPy has algorithms for graphs, and `to_scipy` makes a matrix
# for them. Here are the largest groups:

# %%
count, group = csgraph.connected_components(pairs.to_scipy(), directed=False)
sizes = np.bincount(group)
print(f"{(sizes > 1).sum()} groups of near-duplicates; the largest three:")
for chosen in np.argsort(-sizes, kind="stable")[:3]:
    members = [names[at].split(".")[-1] for at in np.flatnonzero(group == chosen)]
    print(f"  {len(members)}:", ", ".join(members[:8]), "..." if len(members) > 8 else "")

# %% [markdown]
# ## What you learned
#
# `sparsifier=topk(n)` keeps the best entries of each row of a product of sparse matrices inside the kernel, so the
# complete product is never stored. `threshold(t)` keeps the entries above a value, here after the complete product.
# `explain` tells whether a rule is part of the kernel. Each result is an ordinary sparse tensor for other einsums, SciPy
# and plots.
#
# Next:
#
# * [Coming from SciPy](../start/scipy.md): names side by side, and what `from_scipy` shares.
# * [Pruning](../guide/pruning.md): all sparsifiers, which prune weights in the same way.
# * [Explain](../guide/explain.md): how to read the rest of `explain`.
# * [Tensor factorization](factorization.py): a recommender for ratings of users, items and months.
