"""The table of the convergence check, for the terminal and for docs/convergence.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from statistics import mean

from dlrm_lib.report import versions

from tests.convergence.results import Verdict

COMMAND = "make convergence"
ANOTHER_SPLIT = "torchrun --standalone --nproc_per_node 2 tests/convergence/run.py --split-seed 2013"
HEADER = ("arm", "AUC", "difference", "by seed", "NE", "difference", "gate", "result", "s")


def table(verdicts: Sequence[Verdict]) -> str:
    """A Markdown table, one line for each arm; AUC and NE are means over the seeds."""
    lines = [HEADER, tuple("---" for _ in HEADER)]
    for verdict in verdicts:
        lines.append(_line(verdict))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _line(verdict: Verdict) -> tuple[str, ...]:
    arm, outcomes = verdict.arm, verdict.outcomes
    entropy = f"{mean(o.normalized_entropy for o in outcomes):.5f}"
    start = (arm.name, f"{mean(o.auc for o in outcomes):.5f}")
    seconds = f"{mean(o.seconds for o in outcomes):.1f}"
    if arm.gate is None:
        return (*start, "", "", entropy, "", "", "", seconds)
    result = "holds" if verdict.within_gate else "fails"
    wanted = {True: ", must hold", False: ", must fail", None: ""}[arm.expected]
    return (
        *start,
        f"{mean(verdict.auc_differences):+.5f}",
        " ".join(f"{1e5 * difference:+.0f}" for difference in verdict.auc_differences),
        entropy,
        f"{mean(verdict.entropy_differences):+.5f}",
        str(arm.gate),
        f"{result}{wanted}" + ("" if verdict.as_expected else ": **WRONG**"),
        seconds,
    )


def document(verdicts: Sequence[Verdict], seeds: Sequence[int], seconds: float, setting: str) -> str:
    """The page docs/convergence.md."""
    plain = [verdict for verdict in verdicts if not verdict.arm.of_range]
    by_optimizer = {name: [v for v in plain if v.arm.optimizer == name] for name in ("adagrad", "sgd")}
    of_range = [verdict for verdict in verdicts if verdict.arm.of_range]
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"""# Does training survive the codecs?

Written by `{COMMAND}`; do not edit. Measured with {used};
{platform.machine()}, {os.cpu_count()} CPU cores, {seconds / 60:.0f} minutes in all.

{setting}

Each arm is trained with the seeds {", ".join(map(str, seeds))}; a seed gives the initial weights and the order of the samples.
AUC and normalized entropy (NE) are means over the seeds, differences are to the FP32 wire with the same seed; "by seed" is the
difference in AUC in units of 0.00001, "s" the wall time of a training on this machine. A gate is on the mean of the paired
differences. The controls are broken codecs (`tests/convergence/faults.py`): a check that did not notice them would say nothing
about the others.

## Row-wise Adagrad, Adam

{table(by_optimizer["adagrad"])}

## The whole range

Codecs forward and backward, and what each saves of the bytes of a row of 32 values, with row-wise Adagrad and Adam. They are
held to the gate of 4 bits. The last must fail it; the one before it, with an exception for some tables, must hold; whether the
others do is shown and not required.

{table(of_range)}

## SGD

Adagrad swallows any constant factor on gradients. Plain SGD does not, so a gradient that is divided twice shows here.

{table(by_optimizer["sgd"])}

## What this cannot see

Truncation and one scale per tensor at 8 bits, and small factors on gradients, are too small for this check. The tests of the
codecs and of the exchange look at them exactly.

FP8 without a row scale hurts only where values are small. TorchRec divides gradients by the number of ranks after the exchange,
so on two ranks what is sent is twice the gradient of the global mean, and the plain cast to E5M2 can pass; the control
therefore casts the gradient of the global mean, and both are in the table.

This is one split of the flights into training and held-out ones. The table for another, here that with the seed 2013, is what
`{ANOTHER_SPLIT}` prints.
"""
