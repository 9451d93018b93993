"""What is left when the vectors are small: ids, vectors that are wide, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.advice import reshard
from torchrec_qcomm.planner.advice.case import Case
from torchrec_qcomm.planner.findings.terms import Advice

WIDE = 4
"""A table is wide above this times the median dim of the job's tables."""

WEIGHT = 0.1
"""Share of the bytes that leave ranks from which on a wide table is worth a word."""

WORTH = 0.01
"""Share of a step's exchange below which a gain is none."""

_INT32 = 2**31


def ids_dominate(case: Case) -> list[Advice]:
    """Ids take longer than the vectors that are looked up by them."""
    job, ids, vectors = case.job, case.times.ids_ms, case.times.quantized_ms
    if ids <= vectors:
        return []
    because = f"Ids, lengths and weights take {u.time(ids)} of a step, vectors and their coding {u.time(vectors)}."
    otherwise = (
        "Other ways, whose gain depends on the data: fewer features or ids a sample; each id of a batch once "
        "(`EmbeddingCollectionSharder(use_index_dedup=True)` for sequences)."
    )
    largest = max((table.table.rows for table in job.tables), default=0)
    if job.index_bytes <= 4 or largest > _INT32:
        return [Advice("ids_dominate", "Ids now take longer than vectors: send fewer", f"{because} {otherwise}", "", 0.0)]
    gain = case.step_ms - case.ms(case.predict(replace(job, index_bytes=4)))
    because = f"{because} Ids of {job.index_bytes} bytes can be 4: no table has more than {largest:,} rows. {otherwise}"
    setting = "KeyedJaggedTensor(..., values=ids.to(torch.int32))"
    return [Advice("ids_dominate", "Ids now take longer than vectors: send them as int32", because, setting, gain)]


def wide_vectors(case: Case) -> list[Advice]:
    """Tables whose vectors are much wider than those of others, and make up much of the bytes."""
    dims = np.array([table.table.dim for table in case.job.tables])
    weights = np.array(case.off_rank)
    if not weights.sum():
        return []
    found = []
    for index in case.heaviest(np.where(dims > WIDE * np.median(dims), weights, 0.0), 3):
        table, share = case.job.tables[index], float(weights[index] / weights.sum())
        narrow = reshard.narrower(table, 2)
        if share < WEIGHT or narrow is None:
            continue
        gain = case.step_ms - case.ms(case.with_tables({index: narrow}))
        if gain <= 0:
            continue
        because = (
            f"Its {table.table.dim} columns are above {WIDE} x the median of {u.digits(float(np.median(dims)))}, and make up "
            f"{u.share(share)} of the bytes that leave ranks; the gain is that of "
            f"{narrow.table.dim} columns. Accuracy is not predicted."
        )
        found.append(Advice("wide_vectors", f"Fewer columns for {table.table.name}, in the model", because, "", gain))
    return found


def nothing_left(case: Case, found: Sequence[Advice]) -> list[Advice]:
    """No other advice gains as much as `WORTH` of a step's exchange."""
    best = max((advice.gain_ms for advice in found), default=0.0)
    if best > WORTH * case.step_ms:
        return []
    because = (
        f"The exchange takes {u.time(case.step_ms)} of a step (vectors and coding {u.time(case.times.quantized_ms)}, ids "
        f"{u.time(case.times.ids_ms)}, gradients of data-parallel tables {u.time(case.times.dense_ms)}, sync of replicas "
        f"{u.time(case.times.sync_ms)}), and the best of all other advice gains {u.time(max(best, 0.0))}."
    )
    return [Advice("nothing_left", "Nothing left to gain here", because, "", 0.0)]
