"""Public names as a package of plain Python files, and the pages that show them.

Static analysis does not see names behind a module's ``__getattr__`` and functions that are made in loops. For each public name, `sources`
writes a definition with its signature and its docstring, under the name that users write.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from textwrap import indent
from types import FunctionType
from typing import Any

import numscorch
from numscorch.ir import level

from .public import methods, public_names, signature


@dataclass(frozen=True)
class Group:
    """A page of the reference: the names whose defining module starts with one of ``modules``, or which are listed."""

    page: str
    title: str
    about: str
    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def has(self, name: str, module: str) -> bool:
        return name.removeprefix("numscorch.") in self.names or f"{module}.".startswith(
            tuple(f"numscorch.{prefix}." for prefix in self.modules)
        )


GROUPS = (
    Group("in-place", "In-place operators", "They change the tensor that is given and return it. As methods: `A.relu_()`."),
    Group("errors", "Errors and warnings", "Each text shows the request, the clash, and the way out.", ("errors",)),
    Group("tensor", "SparseTensor", "The tensor class, and what it records.", ("tensors.ledgers",), ("SparseTensor",)),
    Group(
        "formats",
        "Formats",
        "How levels, dimensions and arrays fit together: [formats](../concepts/formats.md).",
        ("ir", "interface.level_checks"),
    ),
    Group(
        "expressions",
        "Expressions and compilation",
        "Notation: [expressions](../concepts/expressions.md). Programs: [fusion](../concepts/fusion.md).",
        ("interface.bound", "interface.fusing", "interface.warmup", "programs", "measuring"),
        ("einsum", "evaluate", "explain"),
    ),
    Group("files", "Files", "Files and what they keep: [save and load](../guide/files.md).", ("files",), ("load", "save")),
    Group(
        "creation",
        "Creation and conversion",
        "Tensors from arrays, and from other libraries.",
        ("operators.creation", "convert", "interop"),
    ),
    Group("products", "Products", "Matrix and tensor products; `@` calls `matmul`.", ("operators.products",)),
    Group("reductions", "Sums and other reductions", "", ("operators.reducing", "operators.statistics")),
    Group("binary", "Elementwise, two tensors", "Python's operators call them: `A + B`.", ("operators.binary", "operators.elementwise")),
    Group("unary", "Elementwise, one tensor", "", ("operators.unary",)),
    Group("comparison", "Sorting and comparison", "", ("operators.comparison",)),
    Group("shapes", "Shapes, joining and splitting", "", ("operators.reshaping", "operators.joining"), ("t",)),
    Group("indexing", "Indexing and selection", "`A[1:3]` is indexing, too.", ("operators.indexing",)),
    Group("other", "Other operators", "", ("operators.other", "operators.attributes")),
    Group(
        "nn-graphs",
        "numscorch.nn: graph layers",
        "With weights of PyTorch Geometric: [graphs](../guide/graphs.md).",
        ("nn.graph_convolutions", "nn.graph_attention"),
    ),
    Group(
        "nn-functional",
        "numscorch.nn: functions and attention patterns",
        "Other names of `numscorch.nn.functional` are torch's.",
        ("nn.functional", "nn.patterns", "nn.csr_patterns"),
    ),
    Group("nn", "numscorch.nn: layers and parameters", "What they replace: [modules](../guide/modules.md).", ("nn", "tensors.parameter")),
    Group(
        "sparsify-models",
        "numscorch.sparsify: models and training",
        "Use: [pruning](../guide/pruning.md), [sparse training](../tutorials/sparse_training.md).",
        ("sparsify",),
        ("sparsify.sparsify", "sparsify.schedules.Schedule", "sparsify.report", "sparsify.LayoutReport", "sparsify.LayoutRow"),
    ),
    Group(
        "sparsifiers",
        "numscorch.sparsify: sparsifiers",
        "What they keep: [pruning](../guide/pruning.md).",
        ("sparsifiers",),
        ("sparsify.Sparsifier",),
    ),
    Group("sharding", "numscorch.sharding", "Use: [distributed](../guide/distributed.md).", ("sharding",)),
)


EXTENSION = {f"numscorch.ir.level.{name}": getattr(level, name) for name in ("Level", "Mode", "Entries", "Parents", "Children", "ranges")}
MARKS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def group_of(name: str, value: Any) -> Group:
    """The page that shows a public name.

    Raises:
        LookupError: if no group has it.
    """
    if name.endswith("_"):
        return GROUPS[0]
    module = "numscorch.errors" if inspect.isclass(value) and issubclass(value, BaseException) else home(value)
    found = next((group for group in GROUPS if group.has(name, module)), None)
    if found is None:
        raise LookupError(f"no page of the reference shows {name}, which {module} defines: add it to GROUPS in docs/website/api.py")
    return found


def home(value: Any) -> str:
    """The module that defines an object; public classes and functions claim to be defined in the public one."""
    if isinstance(value, type):
        modules = [str(member.__globals__["__name__"]) for member in vars(value).values() if isinstance(member, FunctionType)]
        return next((name for name in modules if name.startswith("numscorch")), value.__module__)
    if callable(value) and hasattr(inspect.unwrap(value), "__globals__"):
        return str(inspect.unwrap(value).__globals__["__name__"])
    return type(value).__module__ if type(value).__module__ != "numscorch" else "numscorch.ir.format"


def pages() -> dict[str, str]:
    """The Markdown of each page of the reference by its path, an index first."""
    found = public_names()
    shown: dict[Group, list[str]] = {group: [] for group in GROUPS}
    for name in sorted(found, key=lambda name: (name.count("."), not isinstance(found[name], type), name.lower())):
        shown[group_of(name, found[name])].append(name)
    ordered = [*GROUPS[2:], GROUPS[0], GROUPS[1]]
    index = "\n".join(
        f"\n## [{group.title}]({group.page}.md)\n\n{group.about}\n\n| name | what |\n|---|---|\n"
        + "\n".join(f"| [`{name}`][{name}] | {summary(found[name])} |" for name in shown[group])
        for group in ordered
    )
    about = f"Every public name of numscorch {numscorch.__version__}. All other names of `numscorch` and `numscorch.nn` are torch's."
    texts = {"reference/index.md": f"# API reference\n\n{about}\n{index}\n"}
    for group in ordered:
        texts[f"reference/{group.page}.md"] = (
            f"# {group.title}\n\n{group.about}\n\n" + "\n\n".join(f"::: {name}" for name in shown[group]) + "\n"
        )
    shown_classes = "\n\n".join(f"::: {name}" for name in EXTENSION)
    about = "The classes that level formats use ([extend numscorch](../guide/extend.md)). They can change in any version."
    texts["reference/levels.md"] = f"# Level formats of your own\n\n{about}\n\n{shown_classes}\n"
    return texts


def summary(value: Any) -> str:
    """The first paragraph of a docstring, for a row of a table."""
    if not callable(value) and not inspect.isclass(value):
        return f"The format `{value}`."
    return linked((inspect.getdoc(value) or "").partition("\n\n")[0]).replace("\n", " ").replace("|", "\\|").replace("``", "`")


def sources() -> dict[str, str]:
    """Python files by path, which define every public name with its signature and its docstring."""
    found: dict[str, list[str]] = {}
    for name, value in {**public_names(), **EXTENSION}.items():
        module, _, short = name.rpartition(".")
        found.setdefault(module, []).append(definition(short, value))
    found["numscorch.ir"] = []
    return {f"{module.replace('.', '/')}/__init__.py": "\n\n".join(['"""."""', *parts]) for module, parts in found.items()}


def definition(name: str, value: Any) -> str:
    """Source of a public object without its body."""
    if inspect.isclass(value):
        members = [member(key, found) for key, found in methods(value).items()]
        constructor = "" if issubclass(value, BaseException) else function("__init__", signature(value), "", "self")
        return "\n\n".join([f"class {name}:", indent(quoted(value), "    "), indent("\n\n".join([constructor, *members]), "    ")])
    if not callable(value) or not (shape := signature(value)):
        about = (
            f"The format ``{value}``." if hasattr(value, "levels") else "A function of a tensor that returns a mask of the entries to keep."
        )
        return f'{name}: Any\n"""{about}"""'
    return function(name, shape, quoted(value))


def member(name: str, value: Any) -> str:
    """Source of a method or a property."""
    if isinstance(value, property):
        shape = signature(value.fget)
        return "@property\n" + function(name, shape, quoted(value))
    kind = "" if inspect.isfunction(value) else f"@{type(value).__name__}\n"
    inner = getattr(value, "__func__", value)
    return kind + function(name, signature(inner), quoted(inner))


def function(name: str, shape: inspect.Signature | None, doc: str, *first: str) -> str:
    """Source of a function; parameters that start with an underscore are left out."""
    parameters = [] if shape is None else [parameter for parameter in shape.parameters.values() if not parameter.name.startswith("_")]
    written = ", ".join([*first, *written_parameters(parameters)])
    result = "" if shape is None or shape.return_annotation is inspect.Signature.empty else f" -> {annotation(shape.return_annotation)}"
    return f"def {name}({written}){result}:\n{indent(doc or '...', '    ')}"


def written_parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """The source of each parameter, with the marks between kinds."""
    kinds = [parameter.kind for parameter in parameters]
    star = inspect.Parameter.VAR_POSITIONAL in kinds
    for place, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        mark = MARKS.get(parameter.kind, "")
        text = mark + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {annotation(parameter.annotation)}"
        yield text if parameter.default is parameter.empty else f"{text} = {default(parameter.default)}"
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and kinds[place + 1 : place + 2] != [parameter.kind]:
            yield "/"


def annotation(value: Any) -> str:
    """An annotation as source."""
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    return text.replace("typing.", "").replace("ForwardRef(", "").replace("')", "").replace("'", "")


def default(value: Any) -> str:
    """A default value as source; ``...`` if it cannot be written so."""
    try:
        ast.parse(repr(value), mode="eval")
    except SyntaxError:
        return "..."
    return repr(value)


def quoted(value: Any) -> str:
    """A docstring as source, in which examples are fenced and roles are links."""
    return f'r"""{linked(fenced(tabled(inspect.getdoc(value) or ""))).replace(chr(34) * 3, chr(39) * 3)}\n"""'


TABLE = re.compile(r"^=+ [ =]+\n(?P<rows>(?:.+\n)+?)=+ [ =]+$", re.MULTILINE)


def tabled(doc: str) -> str:
    """A docstring whose simple tables are tables of Markdown.

    >>> print(tabled("====  ====\\n.npz  both\\n.mtx  text,\\n      gz\\n====  ===="))
    |  |  |
    |---|---|
    | .npz | both |
    | .mtx | text, gz |
    """

    def table(match: re.Match[str]) -> str:
        columns = [(word.start(), word.end()) for word in re.finditer("=+", match[0].partition("\n")[0])]
        edges = [*(start for start, _ in columns), None]
        rows: list[list[str]] = []
        for line in match["rows"].splitlines():
            cells = [line[start:end].strip() for start, end in pairwise(edges)]
            if cells[0] or not rows:
                rows.append(cells)
            else:  # the line continues the row above
                rows[-1] = [f"{above} {cell}".strip() for above, cell in zip(rows[-1], cells, strict=True)]
        lines = [f"| {' | '.join(cells)} |" for cells in rows]
        return "\n".join(["|" + "  |" * len(columns), "|" + "---|" * len(columns), *lines])

    return TABLE.sub(table, doc)


@cache
def known() -> frozenset[str]:
    """The public names."""
    return frozenset(public_names())


def linked(doc: str) -> str:
    """A docstring with roles as Markdown: links to public names, and code for others.

    >>> linked("See :func:`einsum` and :class:`~torch.Tensor`.")
    'See [`einsum`][numscorch.einsum] and `torch.Tensor`.'
    """

    def link(match: re.Match[str]) -> str:
        name = match[1].removeprefix("numscorch.")
        return f"[`{name}`][numscorch.{name}]" if f"numscorch.{name}" in known() else f"`{name}`"

    return re.sub(r":\w+:`~?([\w.]+)`", link, doc)


EXAMPLE = re.compile(r"^(?P<margin> *)>>> (?:.*\n?)(?:(?P=margin)\S.*\n?|(?P=margin) .*\n?|\n(?=(?P=margin)>>> ))*", re.MULTILINE)


def fenced(doc: str) -> str:
    """A docstring with each example in a fenced block, also examples separated by one blank line.

    >>> fenced("Add.\\n\\n>>> 1 + 1\\n2\\n\\n>>> 2\\n2\\n\\nMore.")
    'Add.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n\\n>>> 2\\n2\\n```\\n\\nMore.'
    """

    def block(match: re.Match[str]) -> str:
        margin, text = match["margin"], match[0].rstrip("\n")
        after = "\n" if match[0].endswith("\n") else ""
        return f"{margin}```pycon\n{text}\n{margin}```{after}"

    return EXAMPLE.sub(block, doc)
