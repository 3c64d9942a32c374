"""The loop nest, the passes and their cost comparisons as HTML.

The nest is a nested list. Each loop names the pass that created it and the pass that chose how it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import takewhile

from ..ir.index import Assignment, Forall, IndexVar, Stmt, Where, assignments, loops_of, result_of
from ..schedule import Step

CODE = re.compile("``(.*?)``")
COST = re.compile(r"(?P<what>[^:;]+): (?P<cost>\d[\d.]*(?:e[+-]?\d+)?)(?P<moved>(?:, [^;]+)?)")


def nest(steps: Sequence[Step], extents: Mapping[IndexVar, int]) -> str:
    """The last step's statement as a nested list; a ``where`` shows its producer first, in execution order."""
    return f'<ul class="nest">{_item(steps[-1].stmt, steps, extents)}</ul>'


def _item(stmt: Stmt, steps: Sequence[Step], extents: Mapping[IndexVar, int]) -> str:
    match stmt:
        case Assignment():
            return f'<li class="does"><code>{escape(str(stmt))}</code></li>'
        case Where(consumer, producer):
            name = escape(str(result_of(producer).tensor))
            first, then = _item(producer, steps, extents), _item(consumer, steps, extents)
            badges = _badges([_first(steps, lambda step: name in {str(assignment.lhs.tensor) for assignment in assignments(step.stmt)})])
            parts = "".join(
                f'<li class="part"><div>{what}</div><ul>{part}</ul></li>' for what, part in (("fill it", first), ("then read it", then))
            )
            return f'<li class="where"><div>workspace <code>{name}</code> {badges}</div><ul>{parts}</ul></li>'
        case Forall(var, body, tag):
            extent = f" of {extents[var]:,}" if var in extents else ""
            description = CODE.sub(r"<code>\1</code>", escape(" ".join((tag.__doc__ or "").split()).partition(". ")[0].rstrip(".")) + ".")
            head = f"<code>{escape(f'{tag}({var})')}</code><span>{extent}</span> {_badges(passes_of(stmt, steps))}"
            return f'<li class="loop"><div>{head}<p>{description}</p></div><ul>{_item(body, steps, extents)}</ul></li>'


def passes_of(loop: Forall, steps: Sequence[Step]) -> list[str]:
    """The pass that created a loop of the last step, and, if it differs, the pass that set the loop's tag.

    >>> from ..ir.notation import parse_stmt
    >>> texts = "forall(i, y[i] = x[i])", "parallel_forall(i, y[i] = x[i])"
    >>> steps = [Step(name, parse_stmt(text), "") for name, text in zip(("order_loops", "parallelize"), texts)]
    >>> passes_of(loops_of(steps[-1].stmt)[0], steps)
    ['order_loops', 'parallelize']
    """
    *_, tagged = takewhile(lambda step: _count(step, loop, with_tag=True) > 0, reversed(steps))
    before = steps.index(tagged) - 1
    if before < 0 or _count(tagged, loop, with_tag=False) > _count(steps[before], loop, with_tag=False):
        return [tagged.name]  # the same pass created the loop
    first_step = _first(steps, lambda step: _count(step, loop, with_tag=False) > 0)
    return list(dict.fromkeys([first_step, tagged.name]))


def _count(step: Step, loop: Forall, with_tag: bool) -> int:
    return sum(inner.var == loop.var and (inner.tag == loop.tag or not with_tag) for inner in loops_of(step.stmt))


def _first(steps: Sequence[Step], holds: Callable[[Step], bool]) -> str:
    return next(step.name for step in steps if holds(step))


def _badges(passes: Sequence[str]) -> str:
    return " ".join(f'<em class="pass">{escape(name)}</em>' for name in passes)


def pass_list(steps: Sequence[Step]) -> str:
    """A list of the passes, each with its statement and its reason; passes that left the statement unchanged are marked."""
    items, before = [], None
    for step in steps:
        same = "" if step.stmt != before else ' <span class="same">nothing to change</span>'
        shown = "" if same else f"<pre tabindex='0'><code>{escape(str(step.stmt))}</code></pre>"
        idle = ' class="idle"' if same else ""
        items.append(f"<li{idle}><b>{escape(step.name)}</b>{same}{shown}<p>{escape(step.why)}</p></li>")
        before = step.stmt
    return f'<ol class="passes">{"".join(items)}</ol>'


def costs_in(why: str) -> list[tuple[str, float]]:
    """The alternatives that a pass compared and their costs, in the text's order (cheapest first); empty without a comparison.

    >>> costs_in("ijk: 2.56e+05; jik: 7.94e+05, A stored as CSC")
    [('ijk', 256000.0), ('jik, A stored as CSC', 794000.0)]
    """
    pieces = [COST.fullmatch(piece.strip()) for piece in why.split("; ")]
    return [(match["what"] + match["moved"], float(match["cost"])) for match in pieces if match]


def cost_table(steps: Sequence[Step]) -> str:
    """For each pass that compared costs, a table with the costs as bars."""
    tables = []
    for step in steps:
        costs = costs_in(step.why)
        if not costs:
            continue
        most = max(cost for _, cost in costs) or 1.0
        rows = "".join(_cost(what, cost, most, is_chosen=at == 0) for at, (what, cost) in enumerate(costs))
        head = "<tr><th scope='col'>loop order</th><th scope='col'>cost by the model</th><td></td></tr>"
        tables.append(f"<table class='costs'><caption>{escape(step.name)}</caption><thead>{head}</thead><tbody>{rows}</tbody></table>")
    return "".join(tables)


def _cost(what: str, cost: float, most: float, is_chosen: bool) -> str:
    name, kind = (f"{what} (chosen)", " class='chosen'") if is_chosen else (what, "")
    bar = f'<td class="bar"><i style="width:{max(100 * cost / most, 0.5):.1f}%"></i></td>'
    return f"<tr{kind}><th scope='row'>{escape(name)}</th><td>{cost:,.3g}</td>{bar}</tr>"
