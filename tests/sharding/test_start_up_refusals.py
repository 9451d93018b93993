"""What is refused before the first byte moves: ranks that disagree, and settings that would be silently wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import SparseType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import DataType, ShardingType

from tests.ranks import RankPool
from tests.sharding.scenarios.pooled_collections import shard
from tests.sharding.scenarios.tables import SGD, TABLES, batch, collection, placed
from torchrec_qcomm.errors import DisagreementError, PolicyError, QCommError, ShardingError
from torchrec_qcomm.policy import Policy, Rule
from torchrec_qcomm.sharding import QCommEmbeddingBagCollectionSharder, QCommShardedEmbeddingBagCollection
from torchrec_qcomm.sharding.start_up import record
from torchrec_qcomm.sharding.start_up.agreement import Agreement
from torchrec_qcomm.version import __version__

INT8 = Policy("int8", "int8")


def sharder(policy: Policy | None = None, **kwargs: Any) -> QCommEmbeddingBagCollectionSharder:
    timeout = timedelta(seconds=kwargs.pop("seconds", 20))
    return QCommEmbeddingBagCollectionSharder(policy, **{"fused_params": SGD, "agreement_timeout": timeout, **kwargs})


def raised(work: Callable[[], object]) -> str:
    try:
        work()
    except QCommError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing raised"


def disagree(rank: int, world: int, how: str) -> str:
    """The last rank is different; what does every rank say?"""
    odd = rank == world - 1
    policy = Policy(rules=(Rule(tables="t2", backward="int8" if odd and how == "policy" else "int4"),))
    plan = placed(TABLES, "column_wise" if how == "columns" else "table_wise", world, holders=1 if odd and how == "plan" else 2)
    tables, fused = TABLES, SGD
    if how == "links":
        policy = Policy(rules=(Rule(link="inter_host", forward="int4"),))
    if odd and how == "columns":  # the same ranks hold other halves
        left, right = plan["t0"].sharding_spec.shards
        left.shard_sizes, right.shard_sizes, right.shard_offsets = [40, 48], [40, 16], [0, 48]
    if odd and how == "tables":
        tables = (replace(TABLES[0], rows=41), *TABLES[1:])
        plan = placed(tables, "table_wise", world, holders=2)
    if odd and how == "output":
        fused = {**SGD, "output_dtype": SparseType.FP16}
    if odd and how == "table output":
        plan["t3"].output_dtype = DataType.FP16
    if odd and how == "order":
        tables = (TABLES[1], TABLES[0], *TABLES[2:])
    if odd and how == "features":  # the same features, in other tables
        tables = (replace(TABLES[0], features=("f0",)), replace(TABLES[1], features=("f1", "f2")), *TABLES[2:])
    if how == "sharder" and odd:
        # TorchRec's own constructor says nothing to the other ranks.
        return str(type(shard(EmbeddingBagCollectionSharder(fused_params=SGD), collection(), plan)).__name__)
    hosts = 1 if odd and how in ("hosts", "links") else world
    order = ["table_wise"] if odd and how == "types" else None
    seconds = 3 if how == "sharder" else 20
    odd_one = sharder(policy, devices_per_host=hosts, seconds=seconds, fused_params=fused, sharded_module_order_overwrite=order)
    if how == "seed":
        odd_one.seed = int(odd)
    version = f"9.9.{int(odd)}" if how == "version" else __version__
    with patch.object(record, "__version__", version):
        return raised(lambda: shard(odd_one, collection(tables), plan, fqn="sparse.ebc"))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("policy", ["policy.t2.backward", '"int4"', '"int8"', "global rank 2"]),
        ("plan", ["plan.t1.ranks", "[1]", "[0]"]),
        ("version", ["torchrec_qcomm version", "9.9.0", "9.9.1"]),
        ("columns", ["plan.t0.columns", "[16, 48]", "[48, 16]"]),
        ("tables", ["tables.t0.rows", "40", "41"]),
        ("output", ["output_dtype", "fp16"]),
        ("table output", ["plan.t3.output_dtype", "None", "FP16"]),
        ("order", ["order of the tables", '["t0", "t1",', '["t1", "t0",']),
        ("features", ["tables.t0.features", '["f0", "f1"]', '["f0"]']),
        ("types", ["order of the sharding types", "null", '["table_wise"]']),
        ("links", ["devices_per_host", "3", "1"]),
        ("seed", ["seed", "0", "1"]),
    ],
)
def test_ranks_that_disagree_all_say_where(ranks: RankPool, how: str, said: list[str]) -> None:
    for answer in ranks.run(3, disagree, how):
        assert answer.startswith("DisagreementError: module 'sparse.ebc': ranks disagree on "), answer
        assert all(text in answer for text in said), answer


def test_hosts_of_unequal_size_do_not_matter_where_links_do_not(ranks: RankPool) -> None:
    assert ranks.run(3, disagree, "hosts") == ["nothing raised"] * 3


def test_a_rank_with_another_sharder_is_named(ranks: RankPool) -> None:
    answers = ranks.run(3, disagree, "sharder")
    assert answers[2] == "ShardedEmbeddingBagCollection"
    for answer in answers[:2]:
        assert "global ranks [2] of [0, 1, 2] did not announce their exchange within 3 s" in answer


def same_name_twice(rank: int, world: int) -> list[str]:
    plan = placed(TABLES, "table_wise", world)
    return [type(shard(sharder(policy), collection(), plan)).__name__ for policy in (INT8, Policy("int4"), INT8)]


def test_modules_of_one_name_do_not_read_each_other(ranks: RankPool) -> None:
    for answer in ranks.run(2, same_name_twice):
        assert answer == ["QCommShardedEmbeddingBagCollection"] * 3


def sub_groups(rank: int, world: int) -> str:
    """Two groups of two ranks each with their own policy, and group ranks that are not global ranks."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = groups[rank % 2]
    Agreement(mine, "m").require({"policy": rank % 2}, timedelta(seconds=20))
    return raised(lambda: Agreement(mine, "m").require({"policy": rank}, timedelta(seconds=20)))


def test_groups_agree_apart_and_speak_of_global_ranks(ranks: RankPool) -> None:
    answers = ranks.run(4, sub_groups)
    assert "global rank 1 has 1, global rank 3 has 3" in answers[1]
    assert "global rank 2 has 2, global rank 0 has 0" in answers[2]


def one_fails(rank: int, world: int) -> list[str]:
    """Rank 1 cannot build its codecs; then all try again; then rank 1 has a plan that makes no sense to TorchRec."""
    policy = Policy(rules=(Rule(link="inter_host", forward="int4"),))
    plan = placed(TABLES, "table_wise", world)
    local = os.environ["LOCAL_WORLD_SIZE"]
    if rank == 1:
        del os.environ["LOCAL_WORLD_SIZE"]
    said = [raised(lambda: shard(sharder(policy), collection(), plan))]
    os.environ["LOCAL_WORLD_SIZE"] = local
    said.append(raised(lambda: shard(sharder(policy), collection(), plan)))
    if rank == 1:
        plan["t0"].compute_kernel = "of another version"
    try:
        return [*said, raised(lambda: shard(sharder(policy), collection(), plan))]
    except ValueError as error:
        return [*said, f"ValueError: {error}"]


def test_the_failure_of_one_rank_is_told_to_all_at_once(ranks: RankPool) -> None:
    first, second, third = ranks.run(3, one_fails)
    assert second[0].startswith("ShardingError: table 't0': its codec depends on the link")
    for answer in (first, third):
        assert answer[0].startswith("DisagreementError: module 'ebc': global rank 1 failed before the exchange: table 't0'")
    assert [answer[1] for answer in (first, second, third)] == ["nothing raised"] * 3
    assert second[2].startswith("ValueError: 'of another version'")
    for answer in (first, third):
        assert "global rank 1 failed before the exchange: 'of another version'" in answer[2]


def test_a_store_that_has_gone_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Store:
        """Keeps nothing: the rank that had it has ended."""

        def add(self, key: str, amount: int) -> int:
            return amount

        def set(self, key: str, value: str) -> None: ...

        def wait(self, keys: list[str], timeout: timedelta) -> None:
            raise RuntimeError("Connection reset by peer")

        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

    class Group:
        def size(self) -> int:
            return 2

        def rank(self) -> int:
            return 1

    monkeypatch.setattr("torchrec_qcomm.sharding.start_up.agreement._get_process_group_store", lambda group: Store())
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [4, 6])
    with pytest.raises(DisagreementError, match=r"store .* cannot be reached \(Connection reset by peer\).*global rank 4"):
        Agreement(Group(), "m").require({}, timedelta(seconds=1))  # type: ignore[arg-type]


def refusals(rank: int, world: int) -> dict[str, str]:
    tables = placed(TABLES, "table_wise", world)
    forced = placed(TABLES, "table_wise", world)
    forced["t1"].sharding_type = "future_wise"
    links = Policy(rules=(Rule(link="inter_host", forward="int4"),))
    half = {**SGD, "output_dtype": SparseType.FP16}
    local = os.environ.pop("LOCAL_WORLD_SIZE")
    answers = {"links": raised(lambda: shard(sharder(links), collection(), tables))}
    os.environ["LOCAL_WORLD_SIZE"] = local
    typo = shard(sharder(Policy(rules=(Rule(tables="t_*", forward="int8"),))), collection(), tables)
    variable = batch(TABLES, 3, seed=rank)
    few = (replace(TABLES[0], rows=1), *TABLES[1:])
    unplanned = {name: sharding for name, sharding in tables.items() if name != "t2"}
    moving = shard(sharder(INT8), collection(), tables)
    return {
        "grid mean": raised(lambda: shard(sharder(INT8), collection(), placed(TABLES, "grid_shard", world))),
        "few rows": raised(lambda: shard(sharder(INT8), collection(few), placed(few, "row_wise", world))),
        "unplanned": raised(lambda: shard(sharder(INT8), collection(), unplanned)),
        "uneven hosts": raised(lambda: shard(sharder(links, devices_per_host=3), collection(), tables)),
        "moved": raised(lambda: moving.update_shards({"t1": forced["t1"]}, None, None)),
        "moved to grid": raised(lambda: moving.update_shards({"t1": placed(TABLES, "grid_shard", world)["t1"]}, None, None)),
        **answers,
        "forced": raised(lambda: shard(sharder(INT8), collection(), forced)),
        "doubled": raised(
            lambda: shard(
                QCommEmbeddingBagCollectionSharder(Policy(rules=(Rule(tables="t3", forward="fp32"),)), fused_params=half),
                collection(),
                tables,
            )
        ),
        "typo": raised(lambda: typo(variable)),
        "in time": raised(lambda: shard(sharder(INT8), collection(), tables)(variable)),
    }


def test_settings_that_cannot_work_are_refused(ranks: RankPool) -> None:
    for answer in ranks.run(2, refusals):
        assert answer["links"].startswith("ShardingError: table 't0': its codec depends on the link")
        assert "'t1': the exchange of this sharding type is not supported yet; got 'future_wise'" in answer["forced"]
        assert answer["doubled"].startswith("ShardingError: table 't3', forward")
        assert "fp32" in answer["doubled"]
        assert answer["typo"].startswith("PolicyError")
        assert "'t_*'" in answer["typo"]
        assert "allow_unmatched" in answer["typo"]
        for grid in ("grid mean", "moved to grid"):
            assert "table 't1', grid_shard: TorchRec returns sums where means are asked for" in answer[grid]
        assert "table 't0', row_wise: a rank would own no rows" in answer["few rows"]
        assert "plan: a table of the collection is not in it; got 't2'" in answer["unplanned"]
        assert "got 3; allowed: a divisor of 2" in answer["uneven hosts"]
        assert "'t1': the exchange of this sharding type is not supported yet; got 'future_wise'" in answer["moved"]
        assert answer["in time"] == "nothing raised"


def test_torchrecs_own_codecs_are_not_stacked() -> None:
    with pytest.raises(ShardingError, match="twice"):
        QCommEmbeddingBagCollectionSharder(INT8, qcomm_codecs_registry={"POOLED_EMBEDDINGS_ALL_TO_ALL": object()})


@pytest.mark.parametrize("hosts", [0, -1, True, 1.5, "2"])
def test_devices_per_host_that_are_no_number(hosts: object) -> None:
    with pytest.raises(ShardingError, match="devices_per_host"):
        QCommEmbeddingBagCollectionSharder(INT8, devices_per_host=hosts)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["int8", {}, ""])
def test_a_policy_that_is_none(policy: object) -> None:
    with pytest.raises(ShardingError, match="not a policy"):
        QCommEmbeddingBagCollectionSharder(policy)  # type: ignore[arg-type]


def test_a_timeout_that_is_no_time() -> None:
    with pytest.raises(ShardingError, match="not a time; got 5"):
        QCommEmbeddingBagCollectionSharder(INT8, agreement_timeout=5)  # type: ignore[arg-type]


def test_what_the_sharder_makes_is_known() -> None:
    assert sharder().sharded_module_type is QCommShardedEmbeddingBagCollection


@pytest.mark.parametrize("text", ["", "two", "0", "-1"])
def test_a_local_world_size_that_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
    with pytest.raises(ShardingError, match="LOCAL_WORLD_SIZE"):
        QCommEmbeddingBagCollectionSharder(INT8)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_supported_types_are_offered(device: str) -> None:
    offered = set(sharder(INT8).sharding_types(device))
    native = set(EmbeddingBagCollectionSharder().sharding_types(device))
    assert offered == native & {
        ShardingType.DATA_PARALLEL.value,
        ShardingType.TABLE_WISE.value,
        ShardingType.COLUMN_WISE.value,
        ShardingType.TABLE_COLUMN_WISE.value,
        ShardingType.ROW_WISE.value,
        ShardingType.TABLE_ROW_WISE.value,
        ShardingType.GRID_SHARD.value,
    }


def test_errors_are_of_one_tree() -> None:
    assert issubclass(DisagreementError, QCommError)
    assert issubclass(PolicyError, QCommError)
