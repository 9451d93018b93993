"""The table of sharding types has TorchRec's types, and planner/ has the names that it says."""

from __future__ import annotations

import pytest
from torchrec.distributed.planner.stats import _get_sharding_type_abbr
from torchrec.distributed.types import ShardingType

from torchrec_qcomm import planner
from torchrec_qcomm.errors import PlannerError
from torchrec_qcomm.planner.kinds import KINDS, kind_of


def test_kinds_are_those_of_torchrec_in_its_order() -> None:
    assert [kind.name for kind in KINDS] == [member.value for member in ShardingType]
    assert all(kind_of(member.value).name == member.value for member in ShardingType)
    with pytest.raises(PlannerError, match="sharding type: unknown; got 'row_wisely'; allowed: column_wise, "):
        kind_of("row_wisely")


def test_abbreviations_are_those_of_the_statistics() -> None:
    assert [kind.statistics for kind in KINDS] == [_get_sharding_type_abbr(kind.name) for kind in KINDS]
    assert len({kind.short for kind in KINDS}) == len(KINDS)


def test_every_public_name_is_there() -> None:
    assert all(getattr(planner, name) for name in planner.__all__)
    assert sorted(planner.__all__) == sorted(name for names in planner._HOMES.values() for name in names)
    with pytest.raises(AttributeError, match="has no attribute 'plan_offline'"):
        planner.plan_offline  # noqa: B018
