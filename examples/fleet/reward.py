"""A reward function for verl: solutions of a batch run on every machine of the training job.

verl: `custom_reward_function.path=examples/fleet/reward.py reward_model.reward_manager=batch`. The
function is called in the job's driver, which has joined the job's Ray cluster by then. A program
that was lost with its machine has no reward at all: a lost machine says nothing about a solution,
and 0 would teach the model that it was wrong.
"""

import os
import re
from functools import cache

from cellwall.fleet import Fleet
from cellwall.model.errors import NodeLost

FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)


@cache
def fleet():
    """The fleet of this process; it is closed when the process ends."""
    return Fleet.blocking(os.environ.get("RAY_ADDRESS"))


def compute_score(data_sources, solution_strs, ground_truths, extra_infos, **_):
    """Return a score from 0.0 to 1.0 for each solution: its share of tests that pass.

    `ground_truths`: for each solution `{"inputs": [text], "outputs": [text]}`.
    """
    owners, programs, expected = [], [], []
    for index, (solution, truth) in enumerate(zip(solution_strs, ground_truths, strict=True)):
        found = FENCE.findall(solution)
        for text, wanted in zip(truth["inputs"], truth["outputs"], strict=True) if found else ():
            owners.append(index)
            programs.append({"code": found[-1], "stdin": text})
            expected.append(wanted)
    passed = [0] * len(solution_strs)
    lost = set()
    # `retry`: programs without effects may run twice, and a lost machine costs no sample.
    for each in fleet().map(programs, timeout=5, on_lost="retry"):
        if isinstance(each.error, NodeLost):
            lost.add(owners[each.index])
        elif each.error is None and each.execution.stdout.split() == expected[each.index].split():
            passed[owners[each.index]] += 1
    if lost:
        raise RuntimeError(f"solutions {sorted(lost)} have no result: their machines were lost")
    return [
        count / max(1, len(truth["inputs"]))
        for count, truth in zip(passed, ground_truths, strict=True)
    ]
