"""Ranks find out at start-up whether they will speak the same wire format.

Each rank publishes what it is about to exchange in the process group's store, under a key of the module's own, and reads what
the others published. Without this, ranks that disagree hang in a collective, are killed by it, or decode garbage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_store

from torchrec_qcomm.errors import DisagreementError

_FAILED = "failed"


class Agreement:
    """One build of one module, on all ranks of a group: `require` what must be equal, or `fail` and tell the others.

    Args:
        group: the ranks that will exchange. One rank agrees with itself.
        module: a name of the module, the same on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup, module: str) -> None:
        self._module = module
        self._alone = group.size() == 1
        if self._alone:
            return
        self._me, self._ranks = group.rank(), dist.get_process_group_ranks(group)
        self._store = _get_process_group_store(group)
        # A module may be built twice under one name. Every rank counts its own builds, before anything in one can fail, and
        # in the store, so that nothing outlives the group.
        build = self._store.add(f"torchrec_qcomm/{module}/builds/{self._me}", 1)
        self._key = f"torchrec_qcomm/{module}/{build}"

    def fail(self, error: Exception) -> None:
        """Tell the other ranks that this one will not exchange, and why."""
        if not self._alone:
            self._publish({_FAILED: str(error) or type(error).__name__})

    def require(self, record: Mapping[str, Any], timeout: timedelta) -> None:
        """Return when all ranks published an equal record.

        Args:
            record: JSON-able; whatever must be equal on all ranks.
            timeout: how long to wait for the others.

        Raises:
            DisagreementError: ranks are missing when the time is over, failed, or published something else. Names the ranks,
                and for a difference the first field that differs with both values.
        """
        if self._alone:
            return
        digests = self._publish(record)
        try:
            self._store.wait(digests, timeout)
        except RuntimeError as error:  # DistStoreError, or from a FileStore the plain one
            raise DisagreementError(self._who_is_missing(digests, timeout)) from error
        mine = self._store.get(digests[self._me])
        for rank, digest in enumerate(digests):
            if self._store.get(digest) != mine:
                raise DisagreementError(self._difference(record, rank))

    def _publish(self, record: Mapping[str, Any]) -> list[str]:
        """Set this rank's record; the keys of all ranks' digests."""
        text = json.dumps(record, sort_keys=True)
        # The digest is published last: who sees it can read the text. Only the digests are read when all is well.
        self._store.set(f"{self._key}/text/{self._me}", text)
        self._store.set(f"{self._key}/digest/{self._me}", hashlib.sha256(text.encode()).hexdigest())
        return [f"{self._key}/digest/{rank}" for rank in range(len(self._ranks))]

    def _who_is_missing(self, digests: list[str], timeout: timedelta) -> str:
        try:
            missing = [self._ranks[rank] for rank, digest in enumerate(digests) if not self._store.check([digest])]
        except RuntimeError as error:
            return (
                f"module {self._module!r}: the store of the process group cannot be reached ({error}). The rank that keeps it, "
                f"mostly global rank {self._ranks[0]}, has ended."
            )
        return (
            f"module {self._module!r}: global ranks {missing} of {self._ranks} did not announce their exchange within "
            f"{timeout.total_seconds():g} s. They do not run this sharder, or ended or still work before this point."
        )

    def _difference(self, record: Mapping[str, Any], rank: int) -> str:
        other = json.loads(self._store.get(f"{self._key}/text/{rank}"))
        if _FAILED in other:
            return f"module {self._module!r}: global rank {self._ranks[rank]} failed before the exchange: {other[_FAILED]}"
        field, ours, theirs = next(_differences(json.loads(json.dumps(record)), other))
        return (
            f"module {self._module!r}: ranks disagree on {field}: global rank {self._ranks[self._me]} has {ours}, "
            f"global rank {self._ranks[rank]} has {theirs}. All ranks must run the same code with the same policy and plan."
        )


def agree(group: dist.ProcessGroup | None, module: str, timeout: timedelta, record: Callable[[], Mapping[str, Any]]) -> None:
    """Return when all ranks of ``group`` made an equal ``record``; if making it fails here, the others are told why.

    Raises:
        Exception: what ``record`` raised, whatever it is.
        DisagreementError: as `Agreement.require`.
    """
    agreement = None if group is None else Agreement(group, module)
    try:
        mine = record()
    except Exception as error:  # also one of a kind that is not ours: the others would wait until their time is over
        if agreement:
            agreement.fail(error)
        raise
    if agreement:
        agreement.require(mine, timeout)


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
    elif ours != theirs:
        yield path, json.dumps(ours), json.dumps(theirs)
