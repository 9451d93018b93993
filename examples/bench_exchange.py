#!/usr/bin/env python3
"""Time TorchRec's exchange and the plugin's side by side, in one process group.

    torchrun --standalone --nproc_per_node 2 examples/bench_exchange.py                       # no rate limit
    python examples/netlab.py --hosts 2 --rate 1gbit -- python examples/bench_exchange.py     # two hosts, 1 Gbit links (root)

An exchange lasts from the call of the output dist to the end of its `wait`, plus the same in backward; lookups are left out.
With `--sharding row_wise` and `table_row_wise`, a host is LOCAL_WORLD_SIZE ranks.

Every round runs every arm once, so that slow moments of the machine hit all of them. The time of a round is that of the slowest
rank. For the plugin's arms of one hop, the parts are timed alone too: encoding, a bare all-to-all of the same bytes, decoding.

The process keeps freed memory, as production allocators and CUDA's do. With glibc's defaults, large buffers go back to the
kernel. The page faults of getting them again take longer than the exchange, and hit arms at random.

`--exchange-only N --arms int8` only runs N forward and backward exchanges and prints the bytes that were counted, to be
compared with the counters of the links.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torchrec
from bench_lib.arms import DEFAULT, OURS, TORCHREC, wrong_arm
from bench_lib.settings import SETTINGS, Setting
from dlrm_lib.arguments import count, output_file

from torchrec_qcomm.collectives import Observers, pack, unpack
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.traffic import TrafficMeter
from torchrec_qcomm.wire import Side

WARM_UP = 4
_SWEEP = torch.zeros(1 << 25)  # larger than the caches


def keep_memory() -> bool:
    """Tell glibc to keep what is freed; False if there is no glibc."""
    never_trim, never_mmap = (-1, 2**31 - 1), (-4, 0)  # M_TRIM_THRESHOLD, M_MMAP_MAX in malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, value) for option, value in (never_trim, never_mmap))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that ``work`` takes at this rank. All ranks start together, with cold caches."""
    _SWEEP.add_(1)
    dist.barrier()
    start = perf_counter()
    result = work()
    return perf_counter() - start, result


def exchange(setting: Setting, output_dist: torch.nn.Module) -> float:
    """Seconds of one exchange, forward and backward, at this rank."""
    setting.lookup.grad = None
    forward, values = timed(lambda: output_dist(setting.lookup, setting.context).wait())
    backward, _ = timed(lambda: values.backward(setting.gradient))
    return forward + backward


def parts(setting: Setting, output_dist: QCommPooledEmbeddingDist) -> dict[str, list[Callable[[], Any]]]:
    """The pieces of an exchange, forward and backward, each ready to be timed alone."""
    layout = output_dist.layout(tuple(setting.sizes))
    legs: list[tuple[torch.Tensor, Side, Side]] = [
        (setting.lookup.detach(), layout.lookup_out, layout.values_in),
        (setting.gradient, layout.gradient_out, layout.lookup_gradient_in),
    ]
    sent = [pack(values, out) for values, out, _ in legs]
    received = [torch.zeros(into.nbytes, dtype=torch.uint8) for _, _, into in legs]

    def move(data: torch.Tensor, out: Side, into: Side) -> None:
        receive = torch.empty(into.nbytes, dtype=torch.uint8)
        dist.all_to_all_single(receive, data, list(into.splits), list(out.splits))

    return {
        "encode": [partial(pack, values, out) for values, out, _ in legs],
        "all_to_all": [partial(move, data, out, into) for data, (_, out, into) in zip(sent, legs, strict=True)],
        "decode": [partial(unpack, data, into) for data, (_, _, into) in zip(received, legs, strict=True)],
    }


def measure(setting: Setting, arms: list[str], rounds: int) -> dict[str, Any]:
    """Median seconds of every arm and of its parts; the slowest rank's in each round."""
    dists = {
        a: setting.torchrec(TORCHREC[a]) if a in TORCHREC else setting.ours(OURS[a].policy, Observers(), OURS[a].hierarchical)
        for a in arms
    }
    pieces = {a: parts(setting, d) for a, d in dists.items() if isinstance(d, QCommPooledEmbeddingDist)}
    names = [(a, "exchange") for a in arms] + [(a, p) for a in pieces for p in pieces[a]]
    times = []
    for _ in range(rounds + WARM_UP):
        mine = [exchange(setting, dists[a]) for a in arms]
        mine += [sum(timed(work)[0] for work in works) for a in pieces for works in pieces[a].values()]
        slowest = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times.append(slowest.tolist())
    result: dict[str, Any] = {a: {} for a in arms}
    for (arm, name), seconds in zip(names, zip(*times[WARM_UP:], strict=True), strict=True):
        result[arm][name] = median(seconds)
    return result


def report(result: dict[str, Any]) -> dict[str, Any]:
    """Add ratios; print the table."""
    for arm in result.values():
        if "encode" in arm:
            arm["over_parts"] = arm["exchange"] / (arm["encode"] + arm["all_to_all"] + arm["decode"])
        for base in TORCHREC:
            if base in result:
                arm[f"speedup over {base}"] = result[base]["exchange"] / arm["exchange"]
    columns = [
        *((name, f"{name} ms", 1e3, 1) for name in ("exchange", "encode", "all_to_all", "decode")),
        ("over_parts", "/ parts", 1, 2),
        *((f"speedup over {base}", f"x {base}", 1, 2) for base in TORCHREC if base in result),
    ]
    print(f"{'':13}" + "".join(f"  {head}" for _, head, _, _ in columns))
    for name, arm in result.items():
        cells = (
            f"{arm[key] * factor:{len(head) + 2}.{digits}f}" if key in arm else " " * (len(head) + 2)
            for key, head, factor, digits in columns
        )
        print(f"{name:13}{''.join(cells)}".rstrip())
    return result


def exchange_only(setting: Setting, arm: str, steps: int) -> dict[str, Any]:
    """Run ``steps`` exchanges of one arm; the bytes that this package counted, by source and destination."""
    observers, meter = Observers(), TrafficMeter()
    output_dist = setting.ours(OURS[arm].policy, observers, OURS[arm].hierarchical)
    exchange(setting, output_dist)
    observers.active.append(meter)
    for _ in range(steps):
        exchange(setting, output_dist)
    traffic = meter.gather()
    return {"arm": arm, "steps": steps, "wire_bytes": traffic.matrix(setting.world)}


def run(args: argparse.Namespace, kept: bool) -> None:
    """Measure or count, print, and write the JSON."""
    setting = SETTINGS[args.sharding](args.tables, args.dim, args.batch)
    if args.exchange_only is not None:
        found = exchange_only(setting, args.arms[0], args.exchange_only)
        if setting.rank == 0:
            print(json.dumps(found), flush=True)
    else:
        found = measure(setting, args.arms, args.rounds)
        if setting.rank == 0:
            print(
                f"{args.tables} tables {args.sharding}, D = {args.dim}, batch {args.batch} a rank, {setting.world} ranks on "
                f"{setting.hosts} host{'s' * (setting.hosts > 1)}, {args.rounds} rounds"
            )
            print(f"torch {torch.__version__}, torchrec {torchrec.__version__}, {platform.machine()}; medians, slowest rank")
            if not kept:
                print("no glibc: freed memory may go back to the kernel, and its page faults are in the times")
            found = report(found)
    if args.json is not None and setting.rank == 0:
        with open(args.json, "w") as file:
            json.dump({"setting": vars(args), "result": found}, file, indent=2)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``argparse`` ends the process on an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=count, default=26)
    parser.add_argument("--dim", type=count, default=128)
    parser.add_argument("--batch", type=count, default=2048, help="samples a rank")
    parser.add_argument("--sharding", default="table_wise", choices=list(SETTINGS))
    parser.add_argument("--rounds", type=count, default=25)
    parser.add_argument("--arms", nargs="+", choices=[*TORCHREC, *OURS], help="by default, those that tell most")
    parser.add_argument("--exchange-only", type=count, metavar="N", help="only run N exchanges of the one arm given, and count")
    parser.add_argument("--json", type=output_file, metavar="FILE")
    args = parser.parse_args(arguments)
    args.arms = args.arms or DEFAULT[args.sharding]
    if wrong := wrong_arm(args.sharding, args.arms):
        parser.error(f"--arms {wrong}")
    if args.exchange_only is not None and (len(args.arms) != 1 or args.arms[0] not in OURS):
        parser.error(f"--exchange-only needs --arms with one arm of the plugin: {', '.join(OURS)}")
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --standalone --nproc_per_node 2 examples/bench_exchange.py")
    return args


def main() -> None:
    args = parse_options()
    torch.set_num_threads(1)
    kept = keep_memory()
    dist.init_process_group("gloo")
    run(args, kept)
    gc.collect()  # modules that still exist would keep the group alive, and then gloo may abort the process at its exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
