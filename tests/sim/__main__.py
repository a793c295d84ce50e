"""`python -m tests.sim`: stories of many seeds; `--mutations`: which rule is missed first by which seed."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable
from functools import partial

from tests.sim.mutations import MUTATIONS, mutated
from tests.sim.story import Kind, Told, direct, tell

#: Seeds within which every mutation has to be noticed.
MOST_SEEDS = 1500
#: The same without invariant f, which tells what else fires: rules that only f notices take no longer than that.
MOST_WITHOUT_F = 60
_PROGRESS = 50


def tell_mutated(seed: int, mutation: str | None = None, ignore: str = "", kind: Kind | None = None) -> Told:
    with mutated(mutation):
        return tell(seed, ignore=ignore, kind=kind)


def first_caught(name: str, seeds: Iterable[int], ignore: str = "") -> Told | None:
    """The first story in which the missing rule shows: with the rule, it holds."""
    kind, story = MUTATIONS[name].kind, MUTATIONS[name].story
    if story is not None:
        with mutated(name):
            told = direct(story, ignore=ignore)
        return told if told.broken and not direct(story, ignore=ignore).broken else None
    for seed in seeds:
        told = tell_mutated(seed, name, ignore, kind)
        if told.broken and not tell(seed, ignore=ignore, kind=kind).broken:
            return told
    return None


def _caught(name: str, most: int) -> tuple[str, Told | None, Told | None]:
    return name, first_caught(name, range(most)), first_caught(name, range(min(most, MOST_WITHOUT_F)), "f")


def _mutations(most: int, processes: int) -> int:
    print(f"{'rule taken out':20} {'first seed':>10}  what fires (and without invariant f)")
    missed = 0
    with multiprocessing.Pool(processes) as pool:
        for name, told, other in pool.imap(partial(_caught, most=most), MUTATIONS):
            for which in (told, other):
                text = "nobody noticed" if which is None or which.broken is None else which.broken.what
                story = MUTATIONS[name].story
                seed = "-" if which is None else "directed" if story is not None else str(which.seed)
                print(f"{name if which is told else '':20} {seed:>10}  {text[:120]}", flush=True)
            missed += told is None
    return missed


def _show(told: Told) -> None:
    if told.broken is not None:
        print("\n".join(told.broken.trace))
        print(f"seed {told.seed}: {told.broken}")
    else:
        print(f"seed {told.seed}: well; {told}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one alone, with its trace if it breaks")
    parser.add_argument("--mutate", choices=MUTATIONS, help="without this rule")
    parser.add_argument("--ignore", default="", help="letters of invariants that are not judged")
    parser.add_argument(
        "--stories",
        choices=("both", *Kind),
        default="both",
        help="of which kind; both: most are promotes, every eighth is a switch, with an ambush in half of them",
    )
    parser.add_argument("--mutations", action="store_true", help="the table of all rules")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.mutations:
        return _mutations(MOST_SEEDS, options.processes)
    kind = None if options.stories == "both" else Kind(options.stories)
    if kind is Kind.WAVES and os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of two topics' names are walked in the same order in every process then.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.sim", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    run = partial(tell_mutated, mutation=options.mutate, ignore=options.ignore, kind=kind)
    if options.seed is not None:
        told = run(options.seed)
        _show(told)
        return told.broken is not None
    begun, handed_over, acks, carries, events = time.monotonic(), 0, 0, 0, 0
    broken: list[int] = []
    with multiprocessing.Pool(options.processes) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for number, told in enumerate(pool.imap(run, seeds, chunksize=4), 1):
            handed_over, acks, events = handed_over + told.handed_over, acks + told.acks, events + told.events
            carries += told.carries
            if told.broken is not None:
                broken.append(told.seed)
                if len(broken) == 1:
                    _show(told)
                else:
                    print(f"seed {told.seed}: {told.broken}")
            if number % _PROGRESS == 0:
                print(f"{number} stories in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    took = time.monotonic() - begun
    print(
        f"{options.seeds} stories in {took:.0f} s: {events} events, {acks} acknowledged writes, {carries} carried, "
        f"{handed_over} partitions handed over, "
        + (f"broken by seeds {broken}" if broken else "every invariant held")
    )
    if broken:
        stories = "" if kind is None else f" --stories {kind}"
        print(f"again: python -m tests.sim --seed {broken[0]}{stories}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
