"""`python -m tests.mutations [NAME...]`: which small faults the tests find, and which survive.

Without names all faults of `table.toml` are tried, one after the other, each in a copy of the tree;
a name may be the beginning of several. The exit status is 1 if fewer are caught than must be.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations.runner import Outcome, copy_tree, run_fault
from tests.mutations.table import BadEntry, Fault, check_entry, choose, read_table

GATE = 0.95  # of the faults that are tried


def must_be_caught(tried: int) -> int:
    """Return how many of so many faults must be caught."""
    return math.ceil(GATE * tried)


def main(arguments: list[str]) -> int:
    """Try the faults and print what became of each; return the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="a fault, or how its name begins")
    parser.add_argument("--jobs", type=int, default=1, help="faults tried at the same time")
    parser.add_argument("--list", action="store_true", help="print the names and try nothing")
    chosen = parser.parse_args(arguments)
    try:
        faults = choose(read_table(), chosen.names)
        for fault in faults:
            check_entry(fault)
        if chosen.list:
            _print(*(fault.name for fault in faults))
            return 0
        outcomes = _run(faults, max(1, chosen.jobs))
    except BadEntry as error:
        sys.stderr.write(f"mutations: {error}\n")
        return 2
    caught = sum(outcome.caught for outcome in outcomes)
    needed = must_be_caught(len(outcomes))
    _print(f"{caught} of {len(outcomes)} caught, at least {needed} must be")
    return 0 if caught >= needed else 1


def _print(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)  # noqa: T201 - what the command is for


def _run(faults: tuple[Fault, ...], jobs: int) -> list[Outcome]:
    """Try the faults in as many copies of the tree as there are jobs."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        trees = [Path(folder, f"{number}", "tree") for number in range(jobs)]
        for tree in trees:
            tree.mkdir(parents=True)
            copy_tree(tree)
        with ThreadPoolExecutor(jobs) as pool:
            shares = [faults[number::jobs] for number in range(jobs)]
            return [o for share in pool.map(_run_share, shares, trees) for o in share]


def _run_share(faults: tuple[Fault, ...], tree: Path) -> list[Outcome]:
    outcomes = []
    for fault in faults:
        outcome = run_fault(fault, tree)
        word = "caught" if outcome.caught else "SURVIVED"
        _print(f"{word:8} {fault.name} {outcome.test}".rstrip())
        outcomes.append(outcome)
    return outcomes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
