"""Train with each codec and with each broken one, paired by seed, and hold the differences to the FP32 wire against gates.

    torchrun --standalone --nproc_per_node 2 tests/convergence/run.py --write docs/convergence.md

Exits with 1 if a gate does not hold, or if a control, which must fail its gate, passes it. The data are read once.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from dlrm_lib import arguments  # noqa: E402
from dlrm_lib.data import ClickData, load_flights  # noqa: E402
from dlrm_lib.data.flights import SPLIT_SEED  # noqa: E402
from dlrm_lib.model import Optimizers, build_model  # noqa: E402
from dlrm_lib.options import LEARNING_RATES  # noqa: E402
from dlrm_lib.ranks import Ranks, quiet, start_ranks  # noqa: E402
from dlrm_lib.training import Settings, train  # noqa: E402
from torchrec.distributed.types import ShardingPlan  # noqa: E402

import torchrec_qcomm as qc  # noqa: E402
from tests.convergence.arms import ARMS, Arm  # noqa: E402
from tests.convergence.document import document, table  # noqa: E402
from tests.convergence.results import Outcome, Verdict  # noqa: E402

GLOBAL_BATCH = 1024
CONFIG = ROOT / "configs" / "demo.yaml"  # for the plan alone: every table table-wise or column-wise


def main() -> int:
    """Train all arms, print and write the table."""
    options = _options()
    quiet()
    began = time.perf_counter()
    with start_ranks() as ranks:
        data = load_flights(split_seed=options.split_seed)
        arms = [arm for arm in ARMS if arm.gate is None or options.only.lower() in arm.name.lower()]
        if GLOBAL_BATCH % ranks.world_size:
            raise SystemExit(f"{GLOBAL_BATCH} samples do not divide among {ranks.world_size} ranks")
        plan = _plan(data, ranks)
        verdicts: list[Verdict] = []
        baselines: dict[str, list[Outcome]] = {}
        ranks.say(f"optimizer: {table([]).splitlines()[0]}")
        for arm in arms:
            outcomes = [_train(arm, seed, data, ranks, plan) for seed in options.seeds]
            if arm.gate is None:
                baselines[arm.optimizer] = outcomes
            verdicts.append(Verdict(arm, outcomes, baselines[arm.optimizer]))
            ranks.say(f"{arm.optimizer}: {table(verdicts[-1:]).splitlines()[-1]}")
        if ranks.rank == 0 and options.write:
            seconds, about = time.perf_counter() - began, setting(data, options.split_seed, ranks.world_size)
            Path(options.write).write_text(document(verdicts, options.seeds, seconds, about))
        wrong = [f"{v.arm.optimizer}: {v.arm.name}" for v in verdicts if not v.as_expected]
        ranks.say("\nAs it should be." if not wrong else "\nWRONG: " + "; ".join(wrong))
    return 1 if wrong else 0


def setting(data: ClickData, split_seed: int, world_size: int) -> str:
    """What was trained on what, for the page."""
    return (
        f"{len(data.labels):,} flights of 2013, base rate {data.base_rate:.4f}, {len(data.train):,} to train on and "
        f"{len(data.test):,} held out\n(a random split with seed {split_seed}), {len(data.tables)} tables, "
        f"{len(data.dense_names)} dense inputs; TorchRec's DLRM with D = 32, bottom {len(data.dense_names)}-64-32, "
        f"top 128-64-1;\nbatch {GLOBAL_BATCH} over {world_size} ranks, one epoch."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=arguments.seed, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", default="", help="train only arms with this in their name, and the FP32 wire")
    parser.add_argument(
        "--split-seed", type=arguments.seed, default=SPLIT_SEED, help="of the held-out flights (default %(default)s)"
    )
    parser.add_argument("--write", metavar="FILE", type=arguments.output_file, help="write the page")
    return parser.parse_args()


def _plan(data: ClickData, ranks: Ranks) -> ShardingPlan:
    """One plan for all arms, made with the plugin's sharders: what they offer, TorchRec's offer too."""
    config = qc.load_config(CONFIG)
    model = build_model(data)
    return qc.get_planner(config, model).collective_plan(model, qc.get_sharders(None), ranks.group)


def _train(arm: Arm, seed: int, data: ClickData, ranks: Ranks, plan: ShardingPlan) -> Outcome:
    embedding_lr, dense_lr = LEARNING_RATES[arm.optimizer]
    settings = Settings(
        batch_size=GLOBAL_BATCH // ranks.world_size,
        seed=seed,
        optimizers=Optimizers(arm.optimizer, embedding_lr, dense_lr),
        report_every=0,
    )
    run = train(data, settings, ranks, plan, arm.sharders())
    assert run.quality.auc is not None
    assert run.quality.normalized_entropy is not None
    return Outcome(seed, run.quality.auc, run.quality.normalized_entropy, run.seconds)


if __name__ == "__main__":
    sys.exit(main())
