"""The parts of the convergence check that need no training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import torchrec_qcomm as qc
from tests.convergence import arms, faults, run
from tests.convergence.results import Outcome, Verdict
from torchrec_qcomm.codecs import Codec

PAGE = Path(__file__).parents[2] / "docs" / "convergence.md"


@pytest.mark.parametrize("arm", [arm for arm in arms.ARMS if arm.broken], ids=lambda arm: arm.name)
def test_every_fault_is_one(arm: arms.Arm) -> None:
    """A broken codec gives other values than the codec it stands for, and moves them through real bytes."""
    assert arm.policy is not None
    values = torch.randn(40, 32, generator=torch.Generator().manual_seed(0)) * torch.logspace(-7, 0, 40).unsqueeze(1)
    for name, spoil in arm.broken.items():
        real, broken = qc.codecs.get(name), faults.factory(arm.broken)(qc.codecs.spec(name))
        assert isinstance(broken, Codec)
        seen = broken.decode(broken.encode(values, noise=qc.codecs.Noise()), 32)
        assert torch.equal(seen, spoil(values))
        error, bound = (seen - values).abs(), real.error_bound(values)
        assert (error > bound).any(), "within the bound of the real codec: not a fault"
    used = {str(arm.policy.forward), str(arm.policy.backward)} | {str(rule.backward) for rule in arm.policy.rules}
    assert any(name in text for name in arm.broken for text in used), "the policy never asks for the broken codec"


def test_truncation_is_only_a_wrong_rounding() -> None:
    values = torch.randn(30, 32, generator=torch.Generator().manual_seed(1))
    step = (values.amax(-1) - values.amin(-1)).unsqueeze(1) / faults.LEVELS
    lost = values - faults.truncated_int4(values)
    assert lost.min() > -1e-4
    assert (lost <= step).all()
    assert lost.mean() > 0.4 * step.mean()


def verdict(expected: bool | None, auc: float, entropy: float) -> Verdict:
    arm = arms.Arm("x", "adagrad", arms.EIGHT_BITS, qc.Policy("int8"), expected=expected)
    baseline = [Outcome(seed, 0.82 + 0.001 * seed, 0.74, 1.0) for seed in (0, 1, 2)]
    # not in the order of the baseline: pairs are found by seed
    outcomes = [Outcome(o.seed, o.auc + auc, o.normalized_entropy + entropy, 1.0) for o in reversed(baseline)]
    return Verdict(arm, outcomes, baseline)


@pytest.mark.parametrize(
    ("auc", "entropy", "holds"),
    [(0.0, 0.0, True), (-0.0004, 0.0007, True), (-0.0006, 0.0, False), (0.001, 0.0009, False)],
)
def test_gates(auc: float, entropy: float, holds: bool) -> None:
    found = verdict(True, auc, entropy)
    assert found.auc_differences == pytest.approx([auc] * 3)
    assert found.within_gate is holds
    assert found.as_expected is holds
    assert verdict(False, auc, entropy).as_expected is not holds
    assert verdict(None, auc, entropy).as_expected


def text_of(page: str) -> str:
    """A page without what a run measures, or what it is measured with."""
    page = re.sub(r"Measured with .*? minutes in all", "Measured", page, flags=re.DOTALL)
    return re.sub(r"\| (holds|fails) \|", "| shown |", re.sub(r"[+-]?\d[\d.,]*", "0", page))


def test_the_page_is_what_the_check_writes() -> None:
    """Made-up results for all arms: the page differs in numbers alone."""
    from dlrm_lib.data import make_synthetic  # importing `run` put it on the path

    baseline = [Outcome(seed, 0.82, 0.74, 1.0) for seed in (0, 1, 2)]
    worse = [Outcome(seed, 0.7, 0.9, 1.0) for seed in (0, 1, 2)]
    verdicts = [Verdict(arm, worse if arm.expected is False else baseline, baseline) for arm in arms.ARMS]
    setting = run.setting(make_synthetic(samples=50, seed=0), split_seed=run.SPLIT_SEED, world_size=2)
    assert text_of(run.document(verdicts, [0, 1, 2], 60.0, setting)) == text_of(PAGE.read_text())
    split = f"(a random split with seed {run.SPLIT_SEED})"
    assert split in setting
    assert split in PAGE.read_text()
