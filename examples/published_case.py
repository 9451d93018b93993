#!/usr/bin/env python3
"""Forecasts beside a published case: two nodes of 8 GPUs before and after FP8 communication, and with 2D parallelism.

    python examples/published_case.py
    python examples/published_case.py --assume "ids of a vector=1:1" --assume "dim=128:128"

Published (Pinterest, June 2026; read in secondary copies, https://tool.lu/ko_KR/article/7TU/preview,
https://www.sysdesai.com/news/-3jwKglosWOl and https://aissential.tech/articles/f44a187d-80fb-4cba-92b2-0c530af0d2fa):
throughput on two nodes over that on one was 1.13, after FP8 communication 1.57, in the end, with 2D parallelism, 2.0; on four
nodes 1.21 and in the end 3.9, on eight 7.5; 2D parallelism took the all-to-all from 78 to 13 ms; the largest collective was cut
by more than 75 % by FP8.

ONE free parameter is fitted on the first figure: the time of a step that is not exchange. All else that the forecast needs and
that is not public is an assumption with a range. The script takes every corner of these ranges, fits the parameter for it, and
prints the interval of all corners. If an interval does not contain the published figure, that is printed as a miss. If it does
but is wide, it says little.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from torchrec_qcomm.planner.findings.speeds import Speeds
from torchrec_qcomm.planner.findings.timing import times
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.planner.job import Job, Machines, PlannedTable, Replicas
from torchrec_qcomm.policy import Policy, Table

GPUS = 8
FITTED = 1.13
MEASURED_MS = 78.0
TABLES = 64
"""Spread evenly over up to 8 nodes; any other number that can be spread so does as well."""

BATCH = 1024
"""Samples of a rank. Any number does, since times of the exchange are scaled to the 78 ms."""


@dataclass(frozen=True)
class Assumption:
    """A number that is not public; it is assumed to lie between ``low`` and ``high``."""

    name: str
    low: float
    high: float
    unit: str
    why: str


INTRA, INTER, REACHED = "intra-host rate", "inter-host rate", "inter-host rate reached"
DIM, ROW, IDS, SPEED = "dim", "bytes of a row beside its codes", "ids of a vector", "codec speed"
WEIGHTS, SYNC = "weights", "steps from sync to sync"
AT_FP8, ONE_FP8 = "the 78 ms are those with FP8", "the one node has FP8"

ASSUMPTIONS = (
    Assumption(INTRA, 300, 450, "GB/s a GPU, one way", "EFA is AWS: NVLink from p4d, A100, to p5, H100"),
    Assumption(INTER, 6.25, 50, "GB/s a GPU, one way", "the same machines: 50 and 400 GB/s for 8 GPUs"),
    Assumption(REACHED, 0.5, 1, "of it", "as a share of what is reached of the rate inside a host"),
    Assumption(DIM, 32, 256, "values a vector", "tables are not public"),
    Assumption(ROW, 1, 8, "B", "FP8 row by row: 1 in this package (E8M0 scale), 8 in FBGEMM's layout, the size of int8 here"),
    Assumption(IDS, 1, 10, "ids of 8 B", "features are not public; no codec touches ids"),
    Assumption(SPEED, 592, 1438, "GB/s of FP32", "BF16 of 196,608 x 128 in 0.17 and in 0.07 ms, torchrec pull request 4696"),
    Assumption(WEIGHTS, 1, 20, "GB a GPU", "tables are not public; 2D parallelism all-reduces weights"),
    Assumption(SYNC, 100, 1000, "", "not public"),
    Assumption(AT_FP8, 0, 1, "", "0: without; the copies do not say. Taken as forward and backward together"),
    Assumption(ONE_FP8, 0, 1, "", "0: it is the one node of the first figure; the copies do not say"),
)

CODEC_OF_BYTES = {1.0: "fp8_e4m3", 8.0: "int8"}
"""For each FP8 layout, a codec with as many bytes a row."""

ONLY = {ROW: tuple(CODEC_OF_BYTES), AT_FP8: (0.0, 1.0), ONE_FP8: (0.0, 1.0)}
"""The only values that some assumptions can have."""

FIXED = (
    "vectors are FP32 before FP8 (a cut of more than 75 % cannot be one from 16 bits)",
    "tables are dealt out evenly, whole tables to ranks, and ranks have equal batches: weak scaling",
    "what is not exchange takes the same on one node as on several: the all-reduce of dense gradients is in it, or hidden",
    "nothing of the exchange is hidden behind computing (if some is, the same share of every exchange)",
    "times go by bandwidth alone: no latency, no contention beyond the NICs",
)


@dataclass(frozen=True)
class Figure:
    """One published figure; ``published_above``: it was published as a lower bound."""

    name: str
    published: float
    digits: int = 2
    published_above: bool = False


FIGURES = (
    Figure("scaling, 2 nodes", FITTED),
    Figure("scaling, 2 nodes, FP8", 1.57),
    Figure("scaling, 2 nodes, FP8 and 2D", 2.0),
    Figure("scaling, 4 nodes", 1.21),
    Figure("scaling, 4 nodes, FP8 and 2D", 3.9),
    Figure("scaling, 8 nodes, FP8 and 2D", 7.5),
    Figure("all-to-all with 2D, ms (78 without)", 13.0, 1),
    Figure("cut of the bytes by FP8, %", 75.0, 1, published_above=True),
)

Corner = dict[str, float]


@dataclass(frozen=True)
class Exchange:
    """A step's exchange: times in ms, and bytes that leave ranks.

    Attributes:
        vectors: time of moving them, forward and backward.
        coding: time of encoding and decoding at 1 GB/s.
        ids: time of moving them.
        sync: time of syncing 1 GB a GPU between replicas, once.
        nbytes: bytes of the vectors.
    """

    vectors: float
    coding: float
    ids: float
    sync: float
    nbytes: float


@cache
def exchange(
    nodes: int, intra: float, inter: float, dim: int, ids: float, codec: str | None = None, two_d: bool = False
) -> Exchange:
    """The forecast of a model of 64 tables, on 8 GPUs a node; with 2D parallelism every node holds all tables."""
    world = nodes * GPUS
    group = GPUS if two_d else world
    rows = round(1e9 * group / (TABLES * 4 * dim)) if two_d else 1
    tables = tuple(_table(index, rows, dim, index % group, ids) for index in range(TABLES))
    machines = Machines(world, GPUS, 1, intra, inter)
    plain = Job(tables, machines, BATCH, replicas=Replicas(group, strided=False) if two_d and nodes > 1 else None)
    forecast = predict(plain.under(Policy(codec or "none", codec or "none")))
    found = times(forecast, predict(plain), Speeds({codec: (1.0, 1.0)} if codec else {}))
    return Exchange(
        vectors=sum(each.wire_ms for each in found.collectives),
        coding=sum(each.encode_ms + each.decode_ms for each in found.collectives),
        ids=found.ids_ms,
        sync=found.sync_ms,
        nbytes=float(forecast.sent()[:, 1:].sum()),
    )


def _table(index: int, rows: int, dim: int, rank: int, ids: float) -> PlannedTable:
    ranks, sizes, dims, offsets = (np.array([value], dtype=np.int64) for value in (rank, rows, dim, 0))
    name = f"t{index}"
    return PlannedTable(Table(name, rows, dim), "ebc", (name,), (ids,), "table_wise", ranks, sizes, dims, offsets)


def figures(corner: Corner) -> tuple[float, ...] | None:
    """All figures of one corner, then the fitted parameter; ``None`` if no time above zero fits the first figure."""
    links = corner[INTRA], corner[INTER] * corner[REACHED]
    codec = CODEC_OF_BYTES[corner[ROW]]

    def at(nodes: int, fp8: bool, two_d: bool = False) -> Exchange:
        return exchange(nodes, *links, int(corner[DIM]), corner[IDS], codec if fp8 else None, two_d)

    scale = MEASURED_MS / at(2, fp8=bool(corner[AT_FP8])).vectors  # stands for the batch and the width of the real model

    def ms(nodes: int, fp8: bool, two_d: bool = False) -> float:
        found = at(nodes, fp8, two_d)
        sync = found.sync * corner[WEIGHTS] / corner[SYNC]
        return scale * (found.vectors + found.coding / corner[SPEED] + found.ids) + sync

    # 2 (other + one) / (other + two) = FITTED, solved for what is not exchange.
    other = (FITTED * ms(2, False) - 2 * ms(1, False)) / (2 - FITTED)
    if other <= 0:
        return None

    def scaling(nodes: int, fp8: bool, two_d: bool = False) -> float:
        one = ms(1, fp8 and bool(corner[ONE_FP8]))
        return nodes * (other + one) / (other + ms(nodes, fp8, two_d))

    return (
        scaling(2, False),
        scaling(2, True),
        scaling(2, True, two_d=True),
        scaling(4, False),
        scaling(4, True, two_d=True),
        scaling(8, True, two_d=True),
        scale * at(2, bool(corner[AT_FP8]), two_d=True).vectors,
        100 * (1 - at(2, True).nbytes / at(2, False).nbytes),
        other,
    )


def corners(assumptions: Sequence[Assumption]) -> Iterator[Corner]:
    """Every way to take each assumption at one of its ends. The rates of links go together: both are of one kind of machine."""
    free = [each for each in assumptions if each.name not in (INTRA, INTER)]
    rates = [each for each in assumptions if each.name in (INTRA, INTER)]
    for machine in ("low", "high"):
        for ends in product(*(dict.fromkeys((each.low, each.high)) for each in free)):
            yield {
                **{each.name: getattr(each, machine) for each in rates},
                **{each.name: end for each, end in zip(free, ends, strict=True)},
            }


def intervals(assumptions: Sequence[Assumption] = ASSUMPTIONS) -> tuple[list[tuple[float, float]], int, int]:
    """The interval of each figure and of the fitted parameter, and how many of how many corners could be fitted."""
    every = list(corners(assumptions))
    fitted = [found for corner in every if (found := figures(corner)) is not None]
    if not fitted:
        raise SystemExit("published_case.py: with none of these assumptions does a time above zero fit the first figure")
    return [(min(each), max(each)) for each in zip(*fitted, strict=True)], len(fitted), len(every)


def report(assumptions: Sequence[Assumption]) -> Iterator[str]:
    """What is printed, line by line."""
    found, fitted, every = intervals(assumptions)
    yield "Assumptions, each with its range; none of these is public for this case:"
    for each in assumptions:
        yield f"  {each.name}: {each.low:g} to {each.high:g} {each.unit}".rstrip() + f" ({each.why})"
    yield "Assumptions without a range:"
    yield from (f"  {text}" for text in FIXED)
    yield ""
    low, high = found[-1]
    yield f"Fitted on the first figure, and the one free parameter: {low:.0f} to {high:.0f} ms of a step are not exchange."
    if fitted < every:
        yield f"{every - fitted} of {every} corners of the ranges are left out: no such time above zero fits the figure there."
    yield ""
    yield f"{'figure':<36}{'published':>10}{'predicted':>18}"
    for figure, (low, high) in zip(FIGURES, found, strict=False):
        if figure is FIGURES[0]:
            verdict = "fitted"
        elif figure.published_above:
            verdict = "inside" if high > figure.published else f"MISSES: at most {high:.{figure.digits}f}"
        else:
            verdict = _verdict(figure, low, high)
        published = f"{'> ' if figure.published_above else ''}{figure.published:g}"
        yield f"{figure.name:<36}{published:>10}{f'{low:.{figure.digits}f} to {high:.{figure.digits}f}':>18}  {verdict}"


def _verdict(figure: Figure, low: float, high: float) -> str:
    if low <= figure.published <= high:
        return "inside"
    return f"MISSES: {'too high' if low > figure.published else 'too low'}"


def changed(assumptions: Sequence[Assumption], changes: Sequence[str]) -> tuple[Assumption, ...]:
    """Assumptions with other ranges, each given as ``name=low:high``."""
    found = {each.name: each for each in assumptions}
    for change in changes:
        name, _, ends = change.partition("=")
        try:
            low, high = map(float, ends.split(":"))
            found[name] = replace(found[name], low=low, high=high)
        except (KeyError, ValueError):
            raise SystemExit(
                f"published_case.py: not NAME=LOW:HIGH of an assumption: {change!r}; names: {list(found)}"
            ) from None
        if (allowed := ONLY.get(name)) and not {low, high} <= set(allowed):
            raise SystemExit(f"published_case.py: {name}: got {low:g}:{high:g}; allowed: {allowed}")
    return tuple(found.values())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--assume", action="append", default=[], metavar="NAME=LOW:HIGH", help="another range; repeatable")
    for line in report(changed(ASSUMPTIONS, parser.parse_args(arguments).assume)):
        print(line)


if __name__ == "__main__":
    main()
