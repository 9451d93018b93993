"""Train TorchRec's DLRM with its embedding exchange quantized, table by table.

    torchrun --standalone --nproc_per_node 2 examples/dlrm.py --config configs/demo.yaml --compare

gloo on CPU, NCCL where there are CUDA devices. The data are the flights that left New York in 2013 (``--data flights``), a
Criteo file (``--criteo train.txt``) or synthetic clicks. ``--help`` lists the options; the parts are in ``dlrm_lib``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from dlrm_lib.errors import ExampleError, bad
from dlrm_lib.exchange import view_tables, without_exchange
from dlrm_lib.model import build_model
from dlrm_lib.options import load_data, parse_options, settings_of
from dlrm_lib.planning import collective_plan
from dlrm_lib.ranks import Ranks, quiet, start_ranks
from dlrm_lib.report import (
    FP32,
    POLICY,
    arm_text,
    as_dict,
    policy_text,
    quality_text,
    traffic_text,
    warn_no_exchange,
    write_json,
)
from dlrm_lib.training import Run, train

import torchrec_qcomm as qc


def run(options: argparse.Namespace, ranks: Ranks) -> None:
    """Load, plan, train one arm or two, and report."""
    config = qc.QCommConfig() if options.config is None else qc.load_config(options.config)
    data = load_data(options)
    settings = settings_of(options, config.batch_size)
    if min(len(data.train), len(data.test)) < ranks.world_size:
        few = f"{len(data.train)} to train on, {len(data.test)} held out"
        raise bad(data.name, "too few samples", got=few, allowed=f"at least one of each for each of {ranks.world_size} ranks")
    ranks.say(
        f"{data.name}: {len(data.train):,} samples to train on, {len(data.test):,} held out, base rate {data.base_rate:.4f}; "
        f"{ranks.world_size} rank(s) on {ranks.device.type}, {settings.batch_size} samples a rank and step"
    )

    model = build_model(data, dim=settings.dim, seed=settings.seed)
    sharders = qc.get_sharders(config)  # the one-line swap: TorchRec's own is get_default_sharders()
    planner = qc.get_planner(config, model)
    plan = collective_plan(planner, model, sharders, ranks, config.source)

    tables = [qc.Table(table.name, table.rows, settings.dim) for table in data.tables]
    views = view_tables(config.policy, tables, plan)
    origin = "no --config: everything moves as it is" if options.config is None else options.config
    ranks.say(f"\nThe policy of this run ({origin}):\n\n{policy_text(views)}\n")
    missing = without_exchange(views, ranks.world_size)
    if missing and ranks.rank == 0:
        warn_no_exchange(missing)

    arms = {FP32: qc.get_sharders(None)} if options.compare or options.config is None else {}
    if options.config is not None:
        arms[POLICY] = sharders
    runs: dict[str, Run] = {}
    for label, arm_sharders in arms.items():
        ranks.say(f"Training: {arm_text(label)}")
        runs[label] = train(data, settings, ranks, plan, arm_sharders, counters=qc.measure_traffic, label=label)

    missing = without_exchange(views, ranks.world_size, list(runs.values())[-1].traffic)
    if ranks.rank == 0:
        print(f"\n{quality_text(runs)}\n(times are wall time on this machine)\n")
        label, arm = list(runs.items())[-1]
        print(f"{traffic_text(label, arm, views)}\n")
        if missing:
            warn_no_exchange(missing)  # again: the first one has scrolled away by now
        if options.json is not None:
            write_json(options.json, as_dict(data, settings, ranks, options.config, views, missing, runs))
        sys.stdout.flush()


def main() -> int:
    """Run, and turn what the user can mend into a message without a traceback."""
    options = parse_options()
    quiet()
    try:
        with start_ranks() as ranks:
            run(options, ranks)
    except (ExampleError, qc.QCommError) as error:
        rank = int(os.environ.get("RANK", "0"))
        if rank != 0:
            time.sleep(3)  # mostly all ranks fail alike: let rank 0 say it, and torchrun end the others
        print(f"dlrm.py: {f'rank {rank}: ' if rank else ''}{error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
