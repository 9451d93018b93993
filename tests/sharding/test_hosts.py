"""Which ranks are taken for a host: of groups that no small job has, so groups are lists of ranks here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torchrec_qcomm.errors import ShardingError
from torchrec_qcomm.sharding.start_up import hosts


class Group:
    """Ranks, seen by the one at ``me``."""

    def __init__(self, ranks: list[int], me: int = 0) -> None:
        self.ranks, self._me = ranks, me

    def rank(self) -> int:
        return self._me


@pytest.fixture(autouse=True)
def eight_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(get_world_size=lambda: 8, get_process_group_ranks=lambda group: group.ranks)
    monkeypatch.setattr(hosts, "dist", stand_in)
    monkeypatch.setattr(hosts, "exchange_group", lambda env: env)


@pytest.mark.parametrize(("ranks", "here"), [([0, 1, 2, 3, 4, 5, 6, 7], 4), ([0, 2, 4, 6], 2), ([0, 4], 1), ([4, 5, 6, 7], 1)])
def test_ranks_of_a_host_that_share_tables(ranks: list[int], here: int) -> None:
    assert hosts.summing_ranks(4, Group(ranks)) == here  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [[0, 1, 2, 4], [0, 4, 1, 5]], ids=["unequally many", "not one host after the other"])
def test_ranks_that_are_no_hosts_are_refused(ranks: list[int]) -> None:
    with pytest.raises(ShardingError, match="not equally many on each host, one host after the other"):
        hosts.summing_ranks(4, Group(ranks))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("intra", "cross", "said"),
    [
        ([2, 3], [1, 3], None),
        ([1, 3], [1, 3], r"got \[1, 3\]; allowed: global ranks \[2, 3\]"),
        ([2, 3], [2, 3], r"got \[2, 3\]; allowed: global ranks \[1, 3\]"),
    ],
    ids=["hosts", "other hosts", "other ranks across"],
)
def test_both_groups_of_torchrec_must_be_those_of_hosts(intra: list[int], cross: list[int], said: str | None) -> None:
    groups = Group([0, 1, 2, 3], me=3), Group(intra), Group(cross)
    if said is None:
        hosts.require_hosts(*groups, 2)  # type: ignore[arg-type]
        return
    with pytest.raises(ShardingError, match=said):
        hosts.require_hosts(*groups, 2)  # type: ignore[arg-type]
