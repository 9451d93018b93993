"""What the exchanges of a model remember, saved and set; apart from TorchRec's own state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchrec_qcomm.errors import ShardingError, describe
from torchrec_qcomm.state.exchange import ExchangeState

_WRAPPERS = ("_dmp_wrapped_module", "_fsdp_wrapped_module", "_orig_mod")
"""Where TorchRec, FSDP and torch.compile keep the module that they wrap."""


_NEEDED = {"step"}
"""Parts that cannot be left out of what is loaded; the others begin anew."""


def state_dict(model: nn.Module) -> dict[str, dict[str, Any]]:
    """What the exchanges of ``model`` remember, by the path of the collection in the model without wrappers.

    ``step``: forwards in training, the same on all ranks. ``ranges``, if a table has a range of its own: for this rank (``"rank
    3"``), exchange and direction, and table, the moving averages ``minimum``, ``maximum``, ``mean`` and ``std`` of what the
    rank sent, how many ``updates`` and ``values`` they are of, and how many values were ``saturated`` or ``not finite``; scalar
    tensors. Every rank has other ones, so every rank saves its own; the keys differ, as `torch.distributed.checkpoint` wants.

    It is apart from ``model.state_dict()``, which stays TorchRec's own. Save it beside that: a run that is resumed from both
    goes on with the random streams and ranges that it would have had.
    """
    found: dict[str, dict[str, Any]] = {}
    for path, state in _found(model).items():
        saved = {name: part.state() for name, part in state.parts.items()}
        found[path] = {name: each for name, each in saved.items() if each is not None}
    return found


def load_state_dict(model: nn.Module, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Set what `state_dict` returned on this rank; what it holds of other ranks is passed over.

    Without ``ranges`` their statistics begin anew, as they must on other ranks than those that saved them.

    Raises:
        ShardingError: ``state`` is of another model or rank, or has something else in it; nothing is set then.
    """
    found = _found(model)
    if state.keys() != found.keys():
        wrong = "of another model: not the same collections"
        raise ShardingError(describe("load_state_dict", wrong, got=sorted(state), allowed=found))
    for path, saved in state.items():
        where, parts = f"load_state_dict, {path!r}", found[path].parts
        if not _NEEDED <= saved.keys() <= parts.keys():
            raise ShardingError(describe(where, "not a state", got=dict(saved), allowed="step: 0 or more, and ranges if any"))
        for name in (name for name in parts if name in saved):
            parts[name].check(where, saved[name])
    for path, saved in state.items():
        for name, part in found[path].parts.items():
            part.load(saved[name]) if name in saved else part.reset()


def _found(model: nn.Module) -> dict[str, ExchangeState]:
    """By path without the names of wrappers, as in TorchRec's state dict: it may be wrapped after it was loaded."""
    found, inside = {}, set()
    for path, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            inside.add(f"{path}.module" if path else "module")
        if isinstance(state := getattr(module, "qcomm_state", None), ExchangeState):
            parts = path.split(".")
            ends = [".".join(parts[: i + 1]) for i in range(len(parts))]
            own = [part for part, end in zip(parts, ends, strict=True) if part not in _WRAPPERS and end not in inside]
            found[".".join(own)] = state
    return found
