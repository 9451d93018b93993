"""Ranks find out at start-up whether they will speak the same wire format.

Each rank publishes what it is about to exchange in the process group's store, under a key of the module's own, and reads what
the others published. Without this, ranks that disagree hang in a collective, are killed by it, or decode garbage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from torchrec_qcomm.errors import DisagreementError

_PREFIX = "torchrec_qcomm"


def require_agreement(group: dist.ProcessGroup, module: str, record: Mapping[str, Any], timeout: timedelta) -> None:
    """Return when all ranks of ``group`` published an equal ``record`` for ``module``.

    Args:
        group: the ranks that will exchange. One rank agrees with itself.
        module: a name of the module, the same on all ranks.
        record: JSON-able; whatever must be equal on all ranks.
        timeout: how long to wait for the others.

    Raises:
        DisagreementError: ranks are missing when the time is over, or published something else. Names the ranks, and for a
            difference the first field that differs with both values.
    """
    world, me = group.size(), group.rank()
    if world == 1:
        return
    ranks = dist.get_process_group_ranks(group)
    store = _get_process_group_store(group)
    # A module may be built twice under one name; every rank counts its own builds, in the store, so nothing outlives it.
    build = store.add(f"{_PREFIX}/{module}/builds/{me}", 1)
    text = json.dumps(record, sort_keys=True)
    key = f"{_PREFIX}/{module}/{build}"
    # The digest is published last: who sees it can read the text. Only the digests are read when all is well.
    store.set(f"{key}/text/{me}", text)
    store.set(f"{key}/digest/{me}", hashlib.sha256(text.encode()).hexdigest())
    digests = [f"{key}/digest/{rank}" for rank in range(world)]
    try:
        store.wait(digests, timeout)
    except RuntimeError as error:  # DistStoreError, or from a FileStore the plain one
        missing = [ranks[i] for i, digest in enumerate(digests) if not store.check([digest])]
        if not missing:
            raise  # the store itself failed
        raise DisagreementError(
            f"module {module!r}: global ranks {missing} of {ranks} did not announce their exchange within "
            f"{timeout.total_seconds():g} s. They do not run this sharder, or failed or still work before this point."
        ) from error
    mine = store.get(digests[me])
    for rank in range(world):
        if store.get(digests[rank]) != mine:
            other = json.loads(store.get(f"{key}/text/{rank}"))
            field, ours, theirs = next(_differences(record, other))
            raise DisagreementError(
                f"module {module!r}: ranks disagree on {field}: global rank {ranks[me]} has {ours}, "
                f"global rank {ranks[rank]} has {theirs}. All ranks must run the same code with the same policy and plan."
            )


def _differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """The fields that differ, in the order of ``ours``, as ``(path, our value, their value)``."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            here = f"{path}.{name}" if path else str(name)
            if name not in ours or name not in theirs:
                mine, other = (json.dumps(side[name]) if name in side else "nothing" for side in (ours, theirs))
                yield here, mine, other
            else:
                yield from _differences(ours[name], theirs[name], here)
    elif json.dumps(ours) != json.dumps(theirs):
        yield path, json.dumps(ours), json.dumps(theirs)
