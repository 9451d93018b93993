"""Fewer bits where bytes weigh, more where coding costs more than it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchrec_qcomm import codecs
from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.advice.advised_job import AdvisedJob
from torchrec_qcomm.planner.advice.wording import glob_of, precision_rule, shown
from torchrec_qcomm.planner.findings.results import Advice
from torchrec_qcomm.planner.findings.speeds import RUNGS
from torchrec_qcomm.planner.forecast.results import Forecast
from torchrec_qcomm.policy import Direction, Link, Rule

_TRIED = 5
"""Tables, the heaviest, that are tried one by one."""

_LESS = 0.75
"""A rung must take at most this share of a table's bytes. So 8 bits in another format are no rung below 8 bits."""

_NAMED = 20
"""Tables that a rule names at most."""


def lower_precision(advised: AdvisedJob) -> list[Advice]:
    """Fewer bits, the next rung, for each of the tables that send most, where that is predicted to be faster."""
    found = []
    names = [advised.job.tables[index].table.name for index in advised.heaviest(advised.off_rank, _TRIED)]
    for name in dict.fromkeys(names):
        rung = _next_rung(advised, name)
        if rung is not None:
            title = f"Lower precision for {name}: {rung[0]} forward, {rung[1]} backward"
            found += _at_rung(advised, "lower_precision", title, [name], [glob_of(name)], rung)
    return found


def lower_precision_of_many(advised: AdvisedJob) -> list[Advice]:
    """The next rung of the table that sends most, for all tables that have the same; of many, the `_NAMED` that send most.

    One table alone may gain nothing: the slowest rank or host decides, and other tables keep it busy.
    """
    order = [advised.job.tables[index].table.name for index in advised.heaviest(advised.off_rank, len(advised.off_rank))]
    names = list(dict.fromkeys(order))
    rung = _next_rung(advised, names[0]) if names else None
    if rung is None:
        return []
    alike = [name for name in names if _next_rung(advised, name) == rung]
    if len(alike) < 2:
        return []
    everything = len(alike) == len(names)
    alike = alike if everything else alike[:_NAMED]
    globs = ["*"] if everything else [glob_of(name) for name in alike]
    which = f"all {len(names)} tables" if everything else f"{len(alike)} tables ({shown(alike)})"
    title = f"Lower precision for {which}: {rung[0]} forward, {rung[1]} backward"
    return _at_rung(advised, "lower_precision_of_many", title, alike, globs, rung)


def _at_rung(
    advised: AdvisedJob, adviser: str, title: str, names: Sequence[str], globs: Sequence[str], rung: tuple[str, str]
) -> list[Advice]:
    unknown = [codec for codec in dict.fromkeys(rung) if advised.speeds.of(codecs.spec(codec)) is None]
    if unknown and advised.times.codec_speeds:
        return []  # the speeds of the present codecs are known, and these are not: times cannot be compared
    changed = _under_rule(advised, names, globs, *rung)
    gain = advised.step_ms - advised.ms(changed)
    if gain <= 0:
        return []
    before, after = (sum(exchange.sent[:, 1:].sum() for exchange in each.exchanges) for each in (advised.forecast, changed))
    wanted = set(names)
    theirs = sum(each for table, each in zip(advised.job.tables, advised.off_rank, strict=True) if table.table.name in wanted)
    because = (
        f"{u.share(theirs / before)} of the {u.size(before)} that leave ranks in a step; with {rung[0]} forward and {rung[1]} "
        f"backward all is {u.size(after)}. Accuracy is not predicted."
    )
    if unknown:
        because += f" The time to code {', '.join(unknown)} is not known, and not counted."
    return [Advice(adviser, title, because, precision_rule(globs, *rung), gain)]


def switch_off(advised: AdvisedJob) -> list[Advice]:
    """No codec for the tables whose coding takes longer than what it saves on these links."""
    wanted = []
    for name, rate in advised.times.break_even.items():
        here = _rate_of(advised, name)
        if here is not None and (rate is None or rate < here):
            wanted.append((name, rate, here))
    if not wanted or not advised.times.codec_speeds:
        return []
    names = [name for name, _, _ in wanted]
    everything = {table.table.name for table in advised.job.tables} == set(names)
    globs = ["*"] if everything else [glob_of(name) for name in names]
    gain = advised.step_ms - advised.ms(_under_rule(advised, names, globs, "none", "none"))
    if gain <= 0:
        return []
    name, rate, here = min(wanted, key=lambda each: each[1] or 0.0)
    above = "they save no bytes" if rate is None else f"quantizing {name} pays on links below {u.rate(rate)}"
    because = f"With these codecs {above}; here bytes leave a rank at {u.rate(here)}."
    setting = precision_rule(globs, "none", "none")
    return [Advice("switch_off", f"No codec for {shown(names)}: coding takes longer than it saves", because, setting, gain)]


def _under_rule(advised: AdvisedJob, names: Sequence[str], globs: Sequence[str], forward: str, backward: str) -> Forecast:
    """The forecast with a rule for some tables before all other rules."""
    rule = Rule(tables=tuple(globs), forward=forward, backward=backward)
    policy = replace(advised.job.policy, rules=(rule, *advised.job.policy.rules))
    wanted = set(names)
    same = {index: table for index, table in enumerate(advised.job.tables) if table.table.name in wanted}
    return advised.with_tables(same, policy=policy)


def _next_rung(advised: AdvisedJob, name: str) -> tuple[str, str] | None:
    """The first rung that takes at most `_LESS` of the table's bytes between hosts, in both directions; ``None``: none does.

    Of data-parallel tables, which no codec touches, there is none.
    """
    table = advised.by_name[name]
    if not len(table.ranks):
        return None
    resolved, dim = advised.job.policy.resolve([table.table]), int(table.shard_dims.max())
    now = [
        codecs.get(resolved.codec(name, direction, Link.INTER_HOST)).row_bytes(dim, table.payload) for direction in Direction
    ]
    for rung in RUNGS:
        if all(
            codecs.get(codec).row_bytes(dim, table.payload) <= _LESS * taken for codec, taken in zip(rung, now, strict=True)
        ):
            return rung
    return None


def _rate_of(advised: AdvisedJob, name: str) -> float | None:
    """GB/s at which bytes leave a rank without codecs, in the slowest exchange that the table takes part in."""
    rates = []
    for exchange, time in zip(advised.plain.exchanges, advised.plain_ms, strict=True):
        if name in exchange.tables and time > 0:
            rates.append(float(exchange.sent[:, 1:].sum()) / len(exchange.sent) / (time * 1e6))
    return min(rates, default=None)
