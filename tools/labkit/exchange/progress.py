"""How far a list of runs is, and how long the rest will take."""

import sys
import time
from collections.abc import Callable, Sequence

from labkit.exchange.program import Program, Run, done_before, measure
from labkit.exchange.store import Store
from labkit.refusal import Refusal

MOST_FAILURES = 3  # of the first runs, after which the rest is not tried


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def expected(runs: Sequence[Run], outcomes: Sequence[dict | None], guess: Callable[[Run], float]) -> list[float]:
    """Seconds of each run: what an earlier round of the same took, else the guess."""
    took: dict[tuple, float] = {}
    for run, outcome in zip(runs, outcomes):
        if outcome is not None:
            took[run.words, run.rate] = outcome["seconds"]
    return [took.get((run.words, run.rate), guess(run)) for run in runs]


def run_all(store: Store, program: Program, runs: Sequence[Run], guess: Callable[[Run], float], dry: bool) -> list[dict | None]:
    """Measures what is missing, in order, a line each; with `dry` only lists it. A run that fails is told of and left out."""
    outcomes = [done_before(store, program, run) for run in runs]
    missing = [at for at, outcome in enumerate(outcomes) if outcome is None]
    if dry:
        likely = expected(runs, outcomes, guess)
        for at in missing:
            print(f"missing: {runs[at].name}, about {duration(likely[at])}")
        print(f"{len(missing)} of {len(runs)} runs are missing, about {duration(sum(likely[at] for at in missing))}")
        return outcomes
    began = time.monotonic()
    failed = 0
    for count, at in enumerate(missing, 1):
        try:
            outcomes[at] = measure(store, program, runs[at])
            what = duration(outcomes[at]["seconds"])
        except Refusal as refusal:
            failed, what = failed + 1, f"FAILED: {refusal}"
        left = expected(runs, outcomes, guess)
        rest = sum(left[later] for later in missing[count:])
        print(f"[{count}/{len(missing)}] {runs[at].name}: {what}; {duration(time.monotonic() - began)} gone, about {duration(rest)} left",
              file=sys.stderr, flush=True)
        if failed == count == MOST_FAILURES:
            raise Refusal(f"the first {failed} runs all failed; the last: {what}")
    return outcomes
