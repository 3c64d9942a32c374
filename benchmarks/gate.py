"""Performance gate: detects regressions between two commits.

    make bench-check                                     # compare with the last recorded commit of this kind of machine
    make bench-check BASE=main CASES=spmm ROUNDS=3
    python -m benchmarks.gate --of .benchmarks/quick.json     # compare an existing results file with the history only

The suite runs for base and head in turns (A B A B), each time in a separate process, on the same machine and with the same benchmarks.
If ``comparing`` finds a regression, the same number of rounds runs again. Only regressions that both comparisons find independently raise
an alarm, so false alarms must pass both.

To detect gradual slowdowns, the runs of head are also compared with the history of the same kind of machine and the same versions of other
libraries. This comparison raises alarms only for families, and a single run raises none.

The exit code is 0 if nothing became slower, 1 for a regression, and 2 if the comparison is impossible.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from numscorch.measuring.this_machine import this_machine

from .comparing import BAR, Comparison, Loss, compare, growth, ratios_of
from .history import HISTORY, SHORT, read_history
from .records import Run, RunError, read_run
from .worktrees import ROOT, WorktreeError, commit_of, is_dirty, run_suite, tree_of

ROUNDS = 4
LATEST = 8  # latest runs of the history used in a comparison
COVERED = 0.9  # share of head's cases that a comparable run must include
GROWN = 1.25  # growth factor of memory or compile time that is reported
SHOWN = 10  # number of faster cases listed
CHOSEN = "part"  # suite of selected cases, a subset of the other suites
MOVED = "the machine's mood, or a change of everything, which side by side tells"
QUANTITIES = {"compile_seconds": "to compile", "peak_bytes": "memory"}


def side_by_side(
    base: str, *, arguments: Sequence[str] = (), rounds: int = ROUNDS, root: Path = ROOT
) -> tuple[Comparison, list[Run], list[Run]]:
    """Measure a commit and the working tree in turns, and measure both again if something seems slower.

    Args:
        base: the commit.
        arguments: pytest arguments that select cases.
        rounds: runs of each side.
        root: the working tree.

    Returns:
        The last comparison, and its runs of base and of head.

    Raises:
        WorktreeError: the benchmarks fail on base or head.
    """
    with tempfile.TemporaryDirectory() as folder, tree_of(base, root) as tree:
        before, now = _in_turns(tree, root, Path(folder), arguments, rounds)
        first = compare(before, now)
        if not first.slower:
            return first, before, now
        print("something seems slower: once more", file=sys.stderr, flush=True)
        before, now = _in_turns(tree, root, Path(folder), arguments, rounds)
        return confirmed(first, compare(before, now)), before, now


def _in_turns(base: Path, head: Path, folder: Path, arguments: Sequence[str], rounds: int) -> tuple[list[Run], list[Run]]:
    """Alternating runs of both trees (A B A B)."""
    runs: dict[str, list[Run]] = {"base": [], "head": []}
    for turn in range(rounds):
        for side, tree in (("base", base), ("head", head)):
            print(f"round {turn + 1} of {rounds}: {side}", file=sys.stderr, flush=True)
            runs[side].append(run_suite(tree, folder / f"{turn}-{side}.json", arguments))
    return runs["base"], runs["head"]


def confirmed(first: Comparison, again: Comparison) -> Comparison:
    """The second of two independent comparisons, without the regressions that the first one lacks."""
    suspects = {_key(loss) for loss in first.slower}

    def kept(losses: Sequence[Loss]) -> tuple[Loss, ...]:
        return tuple(loss for loss in losses if loss.factor.high >= again.bar or _key(loss) in suspects)

    return Comparison(kept(again.families), kept(again.cases), again.level, again.lacking, again.bar, again.is_sure)


def _key(loss: Loss) -> tuple[str, int, str | None]:
    return loss.kernel, loss.threads, loss.case


def against_history(head: Sequence[Run], history: Sequence[Run]) -> Comparison | None:
    """Compare head with the latest comparable runs of the history; None if there are fewer than two."""
    runs = alike(head, history)
    return compare(runs, head, level=True) if len(runs) > 1 else None


def alike(head: Sequence[Run], history: Sequence[Run]) -> list[Run]:
    """The latest runs of the history that are comparable with head."""
    return [run for run in history if _is_like(run, head)][-LATEST:]


def _is_like(run: Run, head: Sequence[Run]) -> bool:
    """Whether a run is comparable with head: the same machine kind and library versions, most of the cases, and not a run of head."""
    if run.fingerprint != head[0].fingerprint or head[0].suite not in (run.suite, CHOSEN):
        return False
    if (run.commit, run.time) in {(other.commit, other.time) for other in head}:  # stored runs have another path
        return False
    if _others(run) != _others(head[0]):
        return False
    cases = ratios_of(head[0]).keys()
    return len(cases & ratios_of(run).keys()) >= COVERED * len(cases)


def _others(run: Run) -> dict[str, str]:
    """Versions of other libraries; ratios are comparable only between equal versions."""
    return {name: version for name, version in (run.own.get("versions") or {}).items() if name != "numscorch"}


def told(comparison: Comparison, span: str) -> Iterator[str]:
    """Report of a comparison: regressions, improvements, and cases that were not compared."""
    for loss in comparison.slower:
        yield f"{'SLOWER ' if comparison.is_sure else 'slower?'} {loss}, {span}"
    if comparison.slower and not comparison.is_sure:
        yield "One run raises suspicion and can't be sure; make bench-check measures again."
    faster = comparison.faster
    yield from (f"faster  {loss}" for loss in faster[:SHOWN])
    if len(faster) > SHOWN:
        yield f"faster  {len(faster) - SHOWN} more"
    if abs(comparison.level - 1) > 1 - BAR:
        yield f"All ratios moved by a factor of {comparison.level:.2f}, which was taken off: {MOVED}."
    if comparison.lacking:
        yield f"Not compared, since not every run has them: {len(comparison.lacking)} cases, as {comparison.lacking[0]}."
    if not comparison.families and not comparison.cases:
        yield f"Nothing could be compared: no case that has peers is in every run, or too few, {span}."
    elif not comparison.slower:
        counts = f"{len(comparison.families)} families, {len(comparison.cases)} single cases"
        yield f"Nothing became slower by more than {1 - comparison.bar:.0%} beyond doubt: {counts}, {span}."


def grown(base: Sequence[Run], head: Sequence[Run]) -> Iterator[str]:
    """Report of kernels with a longer compile time or a higher peak memory, which do not fail the gate."""
    for name, word in QUANTITIES.items():
        for kernel, factor in growth(base, head, name).items():
            if factor > GROWN:
                yield f"grown   {kernel}: {factor:.2f} times as much {word}"


def span_of(base: str, head: str, dirty: bool = False) -> str:
    """A range of commits in git's notation."""
    return f"{base[:SHORT]}..{head[:SHORT]}{' and changes that are not committed' if dirty else ''}"


def default_base(history: Sequence[Run], root: Path = ROOT) -> str:
    """The last recorded commit of this kind of machine whose files differ from the working tree, else the last commit that differs."""
    head, here = commit_of("HEAD", root), this_machine().fingerprint
    for run in reversed(history):
        if run.fingerprint == here and (run.commit != head or is_dirty(root)):
            try:
                return commit_of(run.commit, root)
            except WorktreeError:  # a commit of another clone
                continue
    return head if is_dirty(root) else commit_of("HEAD~1", root)


def main(arguments: Sequence[str]) -> int:
    """Run the comparison and print its report."""
    options = _parser().parse_args(arguments)
    history, skipped = read_history(options.history)
    for file, why in skipped:
        print(f"skipped in the history: {file.name}: {why}", file=sys.stderr)
    try:
        return _of_file(options.of, history) if options.of else _of_commits(options, history)
    except (RunError, WorktreeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


def _of_file(files: Sequence[Path], history: Sequence[Run]) -> int:
    runs = [read_run(file) for file in files]
    if len({(run.fingerprint, run.suite) for run in runs}) > 1:
        raise ValueError("these are of several kinds of machines, or of several suites: compare those of one with the history")
    comparison = against_history(runs, history)
    if comparison is None:
        kind = f"{runs[0].suite} runs of this kind of machine ({runs[0].fingerprint}) and these versions of other libraries"
        print(f"The history has too few {kind}; make bench-record stores one.", file=sys.stderr)
        return 2
    last = alike(runs, history)[-1]
    print(*told(comparison, span_of(last.commit, runs[-1].commit, runs[-1].dirty)), sep="\n")
    return _exit_code(comparison, comparison.is_sure and bool(comparison.slower))


def _exit_code(comparison: Comparison, is_slower: bool) -> int:
    return 1 if is_slower else 0 if comparison.families or comparison.cases else 2


def _of_commits(options: argparse.Namespace, history: Sequence[Run]) -> int:
    base = commit_of(options.base) if options.base else default_base(history)
    arguments = [*([] if options.full else ["--quick"]), *(["-k", options.cases] if options.cases else [])]
    comparison, before, now = side_by_side(base, arguments=arguments, rounds=options.rounds)
    print(*told(comparison, span_of(base, commit_of("HEAD"), is_dirty())), *grown(before, now), sep="\n")
    drift = against_history(now, history)
    if drift is not None:
        print("Against the history of this kind of machine:", *told(drift, f"up to {commit_of('HEAD')[:SHORT]}"), sep="\n")
    is_drifted = drift is not None and any(loss.case is None for loss in drift.slower)
    return _exit_code(comparison, bool(comparison.slower) or is_drifted)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description="Has anything become slower?")
    parser.add_argument("--base", help="the commit to compare with (default: the last one that was recorded on such a machine)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each side (default: {ROUNDS})")
    parser.add_argument("--cases", help="which cases, as pytest's -k takes it")
    parser.add_argument("--full", action="store_true", help="the whole suite; by default, the quick one")
    parser.add_argument("--of", type=Path, nargs="+", help="results that were measured already: compare them with the history")
    parser.add_argument("--history", type=Path, default=HISTORY, help="the history (default: benchmarks/history)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
