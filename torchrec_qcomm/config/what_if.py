"""What a forecast is to change in a config: one case of ``--what-if``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchrec_qcomm.config.qcomm_config import QCommConfig, load_config
from torchrec_qcomm.errors import ConfigError, describe
from torchrec_qcomm.planner.job import Replicas

WHAT_IF = "policy=FILE, hosts=N, 2d=N or 2d=N:strided, sync=N with 2d; several with commas"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a case changes in the config. ``None``: it stays as it is.

    Attributes:
        policy: a config; its precision block is taken.
        hosts: how many, each with as many devices as before.
        group_size: ranks of a sharding group of 2D parallelism.
        strided: groups are strided, as TorchRec's are by default; else of neighbouring ranks (``use_inter_host_allreduce``).
        sync: with 2D parallelism, steps from one all-reduce of the weights to the next; ``None``: 1.
    """

    policy: QCommConfig | None = None
    hosts: int | None = None
    group_size: int | None = None
    strided: bool = False
    sync: int | None = None

    @property
    def replicas(self) -> Replicas | None:
        """The sharding groups of 2D parallelism, if there are to be some."""
        return None if self.group_size is None else Replicas(self.group_size, self.strided, self.sync or 1)

    def check_plan(self, plan: str) -> None:
        """Refuse other machines for a plan that was made elsewhere.

        Args:
            plan: its file.

        Raises:
            ConfigError: the case has other hosts or sharding groups.
        """
        for name, value in (("hosts", self.hosts), ("2d", self.group_size)):
            if value is not None:
                wrong = f"{plan} places shards on its own ranks, and where they would be on others is the planner's to say"
                todo = "Leave --plan out: then the config's tables are planned anew for those machines."
                raise ConfigError(describe(f"--what-if {name}", wrong, got=value, allowed="policy=FILE with --plan", todo=todo))


def parse_what_if(text: str) -> WhatIf:
    """One ``--what-if``.

    Raises:
        ConfigError: it is none, or a number or file in it is wrong.
    """
    case, seen = WhatIf(), set[str]()
    for part in text.split(","):
        key, given, value = part.partition("=")
        place = f"--what-if {part.strip()}"
        if key.strip() in seen:
            raise ConfigError(
                describe(place, f"{key.strip()} is changed twice", got=text, allowed="once; or a further --what-if")
            )
        seen.add(key.strip())
        if key.strip() == "policy" and value:
            case = replace(case, policy=load_config(value))
        elif key.strip() == "hosts" and given:
            case = replace(case, hosts=_count(value, place))
        elif key.strip() == "2d" and given:
            size, colon, kind = value.partition(":")
            if colon and kind != "strided":
                raise ConfigError(describe(place, "unknown kind of sharding groups", got=kind, allowed=["strided"]))
            case = replace(case, group_size=_count(size, place), strided=bool(colon))
        elif key.strip() == "sync" and given:
            case = replace(case, sync=_count(value, place))
        else:
            raise ConfigError(describe("--what-if", "nothing that can be changed", got=part, allowed=WHAT_IF))
    if case.sync is not None and case.group_size is None:
        wrong = "without 2D parallelism there are no weights to sync"
        raise ConfigError(describe(f"--what-if {text}", wrong, got=f"sync={case.sync}", allowed="2d=N,sync=N"))
    return case


def _count(text: str, place: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(describe(place, "not a number", got=text, allowed="1 or more"))
    return int(text)
