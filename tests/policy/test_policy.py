"""Which rule decides a site: first match, field by field, by link, with `self` following `intra_host`."""

from __future__ import annotations

import json
import pickle

import pytest

from torchrec_qcomm.errors import CodecError, PolicyError
from torchrec_qcomm.policy import Direction, Link, Policy, Rule, Table, Where, link_between

BIG = Table("big_0", rows=1_000_000, dim=64)
SMALL = Table("small", rows=10, dim=8)


def names(policy: Policy, table: Table = BIG, direction: str = "forward") -> dict[str, str]:
    """The codec name on each link."""
    resolved = policy.resolve([table])
    return {str(link): resolved.codec(table.name, direction, link).name for link in Link}


def test_empty_policy_changes_nothing():
    resolved = Policy().resolve([BIG, SMALL])
    assert {resolved.codec(t.name, d, link).name for t in (BIG, SMALL) for d in Direction for link in Link} == {"none"}
    assert not resolved.quantizes("big_0")
    assert resolved.decided_by("big_0", "forward", "self") is None


def test_first_match_wins_forward_and_backward_apart():
    policy = Policy(
        "fp8_e4m3",
        "fp8_e5m2",
        rules=(
            Rule(tables="big_*", forward="int4"),
            Rule(where=Where(max_rows=10), forward="none"),
            Rule(forward="bf16", backward="int8"),
            Rule(forward="fp16", backward="fp16"),
        ),
    )
    resolved = policy.resolve([BIG, SMALL, Table("other", 11, 8)])
    got = {
        (table, d): (resolved.codec(table, d, "inter_host").name, resolved.decided_by(table, d, "inter_host"))
        for table in ("big_0", "small", "other")
        for d in ("forward", "backward")
    }
    assert got == {
        ("big_0", "forward"): ("int4", 0),
        ("big_0", "backward"): ("int8", 2),  # the first rule that matches says nothing about backward
        ("small", "forward"): ("none", 1),
        ("small", "backward"): ("int8", 2),
        ("other", "forward"): ("bf16", 2),
        ("other", "backward"): ("int8", 2),
    }


def test_default_decides_the_rest():
    policy = Policy("int8", "bf16", rules=(Rule(tables="small", forward="int4"),))
    assert set(names(policy).values()) == {"int8"}
    assert set(names(policy, SMALL, "backward").values()) == {"bf16"}


@pytest.mark.parametrize(
    ("link", "changed"),
    [
        (None, {"self", "intra_host", "inter_host"}),
        ("intra_host", {"self", "intra_host"}),  # self follows
        ("inter_host", {"inter_host"}),
        ("self", {"self"}),
    ],
)
def test_link_of_a_rule(link, changed):
    got = names(Policy("int8", rules=(Rule(link=link, forward="int4"),)))
    assert {name for name, codec in got.items() if codec == "int4"} == changed


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        # a later rule that names self wins over an earlier intra_host rule
        ((Rule(link="intra_host", forward="bf16"), Rule(link="self", forward="none")), "none"),
        ((Rule(link="self", forward="none"), Rule(link="intra_host", forward="bf16")), "none"),
        # ... but an earlier rule with no link decides everything, self too
        ((Rule(forward="int4"), Rule(link="self", forward="none")), "int4"),
        ((Rule(link="self", forward="none"), Rule(forward="int4")), "none"),
        # no rule decides for self by name: it follows intra_host, rules for that link included
        ((Rule(link="intra_host", forward="bf16"), Rule(forward="int4")), "bf16"),
        ((Rule(link="intra_host", forward="bf16"), Rule(link="self", backward="none")), "bf16"),
        ((Rule(link="inter_host", forward="bf16"),), "int8"),
    ],
)
def test_self(rules, expected):
    assert names(Policy("int8", rules=rules))["self"] == expected


def test_globs_are_case_sensitive_and_may_be_several():
    rule = Rule(tables=("t_[0-4]", "x*"), forward="int4")
    assert [rule.covers(Table(name, 1, 1)) for name in ("t_3", "t_5", "xyz", "T_3")] == [True, False, True, False]


def test_where_is_inclusive_and_all_parts_of_a_rule_must_match():
    where = Where(min_rows=10, max_rows=20, min_dim=4, max_dim=8)
    inside = [(10, 4), (20, 8)]
    outside = [(9, 4), (21, 4), (10, 3), (10, 9)]
    assert all(where.matches(Table("t", *size)) for size in inside)
    assert not any(where.matches(Table("t", *size)) for size in outside)
    rule = Rule(tables="t*", where=where, link="inter_host", forward="int4")
    assert rule.matches(Table("t", 10, 4), Link.INTER_HOST)
    assert not rule.matches(Table("t", 10, 4), Link.INTRA_HOST)
    assert not rule.matches(Table("u", 10, 4), Link.INTER_HOST)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: Rule(tables="t"), ["decides nothing"]),
        (lambda: Rule(tables=(), forward="int4"), ["tables", "empty"]),
        (lambda: Rule(tables="", forward="int4"), ["tables", "empty"]),
        (lambda: Rule(link="inter", forward="int4"), ["'inter'", "Did you mean 'inter_host'?"]),
        (lambda: Where(), ["no bound given", "min_rows"]),
        (lambda: Where(min_rows=3, max_rows=2), ["min_rows is above max_rows", "got 3", "at most 2"]),
        (lambda: Where(min_dim=9, max_dim=8), ["min_dim is above max_dim"]),
        (lambda: Where(max_rows=-1), ["max_rows", "got -1"]),
        (lambda: Where(max_rows=True), ["max_rows", "got True"]),
        (lambda: Policy(rules=("int4",)), ["rules.0", "not a rule"]),
        (lambda: Table("t", 0, 8), ["'t'", "rows", "got 0"]),
        (lambda: Table("t", 8, 2.0), ["dim", "got 2.0"]),
        (lambda: link_between(0, 1, 0), ["devices_per_host", "got 0"]),
        (lambda: link_between(-1, 1, 2), ["(-1, 1)"]),
    ],
)
def test_refused(make, parts):
    with pytest.raises(PolicyError) as caught:
        make()
    assert [part for part in parts if part not in str(caught.value)] == []


def test_codecs_are_validated_at_once():
    for make in (lambda: Rule(forward="int5"), lambda: Policy(backward="int5")):
        with pytest.raises(CodecError, match=r"int5.*Did you mean"):
            make()
    assert Rule(forward="int4").forward == Policy("int4").forward  # both are specs


def test_links_between_ranks():
    table = [[str(link_between(src, dst, 2)) for dst in range(4)] for src in range(4)]
    near, far, own = "intra_host", "inter_host", "self"
    assert table == [[own, near, far, far], [near, own, far, far], [far, far, own, near], [far, far, near, own]]


def test_unmatched_globs():
    rules = (
        Rule(tables="big_*", forward="int4"),
        Rule(tables=("big_0", "smal"), forward="int4"),
        Rule(tables="gone", forward="int4", allow_unmatched=True),
        Rule(where=Where(min_rows=10**9), forward="int4"),
    )
    policy = Policy(rules=rules)
    policy.check_matched(["big_0", "smal"])
    with pytest.raises(PolicyError) as caught:
        policy.check_matched(["small", "big_0"], where="a.yaml: precision.")
    expected = "a.yaml: precision.rules.1.tables: matches no table; got 'smal'; allowed: big_0, small. Did you mean 'small'?"
    assert expected in str(caught.value)
    policy.check_matched(["big_0", "smal"])


def test_unmatched_list_of_tables_stays_short():
    with pytest.raises(PolicyError, match=r"\.\.\. \(2000 tables\)") as caught:
        Policy(rules=(Rule(tables="x", forward="int4"),)).check_matched(f"t_{i}" for i in range(2000))
    assert len(str(caught.value)) < 1000


def test_one_name_with_two_sizes_is_refused():
    assert Policy().resolve([BIG, BIG]).tables == (BIG,)
    with pytest.raises(PolicyError, match=r"'big_0'.*different sizes.*got '1000000 x 32'; allowed: 1000000 x 64"):
        Policy().resolve([BIG, Table("big_0", 1_000_000, 32)])


def test_unknown_site():
    resolved = Policy().resolve([BIG])
    for site, near in [
        (("big", "forward", "self"), "big_0"),
        (("big_0", "fwd", "self"), ""),
        (("big_0", "forward", "sel"), "self"),
    ]:
        with pytest.raises(PolicyError, match=f"unknown .*{near}"):
            resolved.codec(*site)


@pytest.mark.parametrize(("codec", "expected"), [("none", False), ("fp32", False), ("bf16", True), ("int4", True)])
def test_quantizes_if_any_site_does(codec, expected):
    resolved = Policy(rules=(Rule(tables="big_0", link="self", backward=codec),)).resolve([BIG, SMALL])
    assert resolved.quantizes("big_0") is expected
    assert not resolved.quantizes("small")


def test_to_dict_is_full_and_plain():
    resolved = Policy("int8", rules=(Rule(link="inter_host", backward={"codec": "fp16", "loss_scale": 1024}),)).resolve([SMALL])
    record = resolved.to_dict()
    assert json.loads(json.dumps(record)) == record
    forward, backward = record["small"]["forward"], record["small"]["backward"]
    assert forward == {"self": "int8", "intra_host": "int8", "inter_host": "int8"}
    assert backward["intra_host"] == "none"
    assert "1024" in backward["inter_host"]


def test_values_are_frozen_comparable_and_travel_to_other_processes():
    policy = Policy("int8", rules=[Rule(tables="a", forward="int4")])
    resolved = policy.resolve([BIG])
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert pickle.loads(pickle.dumps(resolved)) == resolved
    assert policy != Policy("int8")
    assert len({policy, Policy("int8", rules=(Rule(tables=("a",), forward="int4"),))}) == 1
    with pytest.raises(AttributeError):
        policy.forward = "int4"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"where": {"max_rows": 3}}, "rule: where: of the wrong type"),
        ({"tables": 5}, "rule: tables: of the wrong type; got 5"),
        ({"allow_unmatched": "yes"}, "rule: allow_unmatched: of the wrong type; got 'yes'"),
    ],
)
def test_values_of_the_wrong_type_are_refused_where_they_stand(arguments, said):
    with pytest.raises(PolicyError, match=said):
        Rule(forward="int8", **arguments)


def test_a_rule_is_no_list_of_rules():
    with pytest.raises(PolicyError, match="policy: rules: of the wrong type"):
        Policy(rules=Rule(forward="int8"))
