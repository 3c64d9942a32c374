"""The gate: has anything become slower?

    make bench-check                                     # against the last recorded commit of this kind of machine
    make bench-check BASE=main CASES=spmm ROUNDS=3
    python -m benchmarks.gate --of .benchmarks/quick.json     # what was measured already, against the history alone

The suite runs for base and head in turns, A B A B, each time in a process of its own, on the same machine, by the same
benchmarks. What ``comparing`` finds to be a regression then runs once more, as many rounds: only what the new
rounds show by themselves as well is an alarm. An accident that gets through the first rounds gets through the second as rarely.
What the runs of head say is also compared with the history of this kind of machine and these versions of others, to catch what became
slower in many small steps; alarms there are for whole families, and one run alone raises none.

The exit code is 0 where nothing became slower, 1 for a regression, 2 where it can't be told.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from numscorch.measuring.machine import this_machine

from .comparing import BAR, Comparison, Loss, compare, growth, ratios_of
from .history import HISTORY, SHORT, read_history
from .records import Run, RunError, read_run
from .worktrees import ROOT, WorktreeError, commit_of, is_dirty, run_suite, tree_of

ROUNDS = 4
LATEST = 8  # runs of the history that a run is compared with
COVERED = 0.9  # of head's cases must a run have
GROWN = 1.25  # times as much memory, or as long a compilation, is told
SHOWN = 10  # cases that are named
CHOSEN = "part"  # a suite whose cases are among those of the others
MOVED = "the machine's mood, or a change of everything, which side by side tells"
QUANTITIES = {"compile_seconds": "to compile", "peak_bytes": "memory"}


def side_by_side(
    base: str, *, arguments: Sequence[str] = (), rounds: int = ROUNDS, root: Path = ROOT
) -> tuple[Comparison, list[Run], list[Run]]:
    """Measure a commit and the present files in turns, and what seems slower once more.

    Args:
        base: the commit.
        arguments: of pytest, to choose cases.
        rounds: runs of each side.
        root: the present files.

    Returns:
        The last comparison, and the runs of base and of head it rests on.

    Raises:
        WorktreeError: the benchmarks don't run on one of both.
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
    """Runs of both trees, A B A B."""
    runs: dict[str, list[Run]] = {"base": [], "head": []}
    for turn in range(rounds):
        for side, tree in (("base", base), ("head", head)):
            print(f"round {turn + 1} of {rounds}: {side}", file=sys.stderr, flush=True)
            runs[side].append(run_suite(tree, folder / f"{turn}-{side}.json", arguments))
    return runs["base"], runs["head"]


def confirmed(first: Comparison, again: Comparison) -> Comparison:
    """The second of two comparisons that share no run, with those of its regressions that both have."""
    suspects = {_key(loss) for loss in first.slower}

    def kept(losses: Sequence[Loss]) -> tuple[Loss, ...]:
        return tuple(loss for loss in losses if loss.factor.high >= again.bar or _key(loss) in suspects)

    return Comparison(kept(again.families), kept(again.cases), again.level, again.lacking, again.bar, again.is_sure)


def _key(loss: Loss) -> tuple[str, int, str | None]:
    return loss.kernel, loss.threads, loss.case


def against_history(head: Sequence[Run], history: Sequence[Run]) -> Comparison | None:
    """Compare with the latest runs of the same kind of machine and the same suite; None where these are too few."""
    same = alike(head, history)
    return compare(same, head, level=True) if len(same) > 1 else None


def alike(head: Sequence[Run], history: Sequence[Run]) -> list[Run]:
    """The latest runs of the history that head can be compared with."""
    return [run for run in history if _is_like(run, head)][-LATEST:]


def _is_like(run: Run, head: Sequence[Run]) -> bool:
    """Whether a run can be compared with those of head: with the same peers, but not one of them, nor one of a few cases only."""
    if run.fingerprint != head[0].fingerprint or head[0].suite not in (run.suite, CHOSEN):
        return False
    if (run.commit, run.time) in {(other.commit, other.time) for other in head}:  # its file may be another, once it is stored
        return False
    if _others(run) != _others(head[0]):
        return False
    asked = ratios_of(head[0]).keys()
    return len(asked & ratios_of(run).keys()) >= COVERED * len(asked)


def _others(run: Run) -> dict[str, str]:
    """The versions of what isn't ours: with another torch, every ratio to it is another one."""
    return {name: version for name, version in (run.own.get("versions") or {}).items() if name != "numscorch"}


def told(found: Comparison, span: str) -> Iterator[str]:
    """What to print of a comparison: regressions, what became faster, and what couldn't be compared."""
    for loss in found.slower:
        yield f"{'SLOWER ' if found.is_sure else 'slower?'} {loss}, {span}"
    if found.slower and not found.is_sure:
        yield "One run raises suspicion and can't be sure; make bench-check measures again."
    faster = found.faster
    yield from (f"faster  {loss}" for loss in faster[:SHOWN])
    if len(faster) > SHOWN:
        yield f"faster  {len(faster) - SHOWN} more"
    if abs(found.level - 1) > 1 - BAR:
        yield f"All ratios moved by a factor of {found.level:.2f}, which was taken off: {MOVED}."
    if found.lacking:
        yield f"Not compared, since not every run has them: {len(found.lacking)} cases, as {found.lacking[0]}."
    if not found.families and not found.cases:
        yield f"Nothing could be compared: no case that has peers is in every run, or too few, {span}."
    elif not found.slower:
        judged = f"{len(found.families)} families, {len(found.cases)} single cases"
        yield f"Nothing became slower by more than {1 - found.bar:.0%} beyond doubt: {judged}, {span}."


def grown(base: Sequence[Run], head: Sequence[Run]) -> Iterator[str]:
    """What compiles longer, or takes more memory: told, no reason to fail."""
    for name, word in QUANTITIES.items():
        for kernel, factor in growth(base, head, name).items():
            if factor > GROWN:
                yield f"grown   {kernel}: {factor:.2f} times as much {word}"


def span_of(base: str, head: str, dirty: bool = False) -> str:
    """A range of commits, as git takes it."""
    return f"{base[:SHORT]}..{head[:SHORT]}{' and changes that are not committed' if dirty else ''}"


def default_base(history: Sequence[Run], root: Path = ROOT) -> str:
    """The last recorded commit of this kind of machine that isn't the present one, else the one before."""
    head, here = commit_of("HEAD", root), this_machine().fingerprint
    for run in reversed(history):
        if run.fingerprint == here and (run.commit != head or is_dirty(root)):
            try:
                return commit_of(run.commit, root)
            except WorktreeError:  # a commit of another clone
                continue
    return head if is_dirty(root) else commit_of("HEAD~1", root)


def main(arguments: Sequence[str]) -> int:
    """Compare, and print what was found."""
    asked = _parser().parse_args(arguments)
    history, skipped = read_history(asked.history)
    for file, why in skipped:
        print(f"skipped in the history: {file.name}: {why}", file=sys.stderr)
    try:
        return _of_file(asked.of, history) if asked.of else _of_commits(asked, history)
    except (RunError, WorktreeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


def _of_file(files: Sequence[Path], history: Sequence[Run]) -> int:
    runs = [read_run(file) for file in files]
    if len({(run.fingerprint, run.suite) for run in runs}) > 1:
        raise ValueError("these are of several kinds of machines, or of several suites: compare those of one with the history")
    found = against_history(runs, history)
    if found is None:
        kind = f"{runs[0].suite} runs of this kind of machine ({runs[0].fingerprint}) and these versions of other libraries"
        print(f"The history has too few {kind}; make bench-record stores one.", file=sys.stderr)
        return 2
    last = alike(runs, history)[-1]
    print(*told(found, span_of(last.commit, runs[-1].commit, runs[-1].dirty)), sep="\n")
    return _exit_code(found, found.is_sure and bool(found.slower))


def _exit_code(found: Comparison, is_slower: bool) -> int:
    return 1 if is_slower else 0 if found.families or found.cases else 2


def _of_commits(asked: argparse.Namespace, history: Sequence[Run]) -> int:
    base = commit_of(asked.base) if asked.base else default_base(history)
    selected = [*([] if asked.full else ["--quick"]), *(["-k", asked.cases] if asked.cases else [])]
    found, before, now = side_by_side(base, arguments=selected, rounds=asked.rounds)
    print(*told(found, span_of(base, commit_of("HEAD"), is_dirty())), *grown(before, now), sep="\n")
    drifted = against_history(now, history)
    if drifted is not None:
        print("Against the history of this kind of machine:", *told(drifted, f"up to {commit_of('HEAD')[:SHORT]}"), sep="\n")
    is_drifted = drifted is not None and any(loss.case is None for loss in drifted.slower)
    return _exit_code(found, bool(found.slower) or is_drifted)


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
