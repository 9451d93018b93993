"""The policy: ordered rules and a default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs.spec import CodecLike, CodecSpec
from torchrec_qcomm.errors import PolicyError, describe
from torchrec_qcomm.policy.globs import unmatched_glob
from torchrec_qcomm.policy.resolution import Decision, ResolvedPolicy
from torchrec_qcomm.policy.rules import Rule
from torchrec_qcomm.policy.sites import Direction, Link, Site, Table, What


@dataclass(frozen=True, slots=True)
class Policy:
    """Which codec each site gets.

    For each table, link and direction the first rule that matches and gives that direction a codec decides; forward and
    backward are decided independently. The default decides the rest. ``self`` follows ``intra_host``, unless the rule that
    decides it among those with no link or with ``link: self`` names ``self``.

    Attributes:
        forward: the default codec of lookups; kept as a ``CodecSpec``.
        backward: the default codec of gradients, likewise.
        rules: in order; the first match wins.

    Raises:
        CodecError: a default codec is unknown or does not take the parameters.

    >>> policy = Policy("fp8_e4m3", "fp8_e5m2", rules=(Rule(tables="big_*", forward="int4"),))
    >>> resolved = policy.resolve([Table("big_0", rows=10**6, dim=64)])
    >>> str(resolved.codec("big_0", "forward", "inter_host")), str(resolved.codec("big_0", "backward", "inter_host"))
    ('int4', 'fp8_e5m2')
    """

    forward: CodecLike = "none"
    backward: CodecLike = "none"
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        for direction in Direction:
            object.__setattr__(self, direction, codecs.spec(getattr(self, direction)))
        if not isinstance(self.rules, (tuple, list)):
            raise PolicyError(describe("policy: rules", "of the wrong type", got=self.rules, allowed="a tuple of rules"))
        object.__setattr__(self, "rules", tuple(self.rules))
        for index, rule in enumerate(self.rules):
            if not isinstance(rule, Rule):
                raise PolicyError(describe(f"policy: rules.{index}", "not a rule", got=rule, allowed="torchrec_qcomm.Rule"))

    def default(self, direction: Direction) -> CodecSpec:
        """The codec of what no rule decides."""
        return cast("CodecSpec", self.forward if direction == Direction.FORWARD else self.backward)

    def decide(self, table: Table, direction: Direction, link: Link) -> Decision:
        """The codec of one site, and the index of the rule that decided it."""
        if link == Link.SELF:
            index = self._first(table, direction, Link.SELF)
            if index is None or self.rules[index].link != Link.SELF:
                return self.decide(table, direction, Link.INTRA_HOST)
        else:
            index = self._first(table, direction, link)
        spec = None if index is None else self.rules[index].codec(direction)
        return Decision(spec or self.default(direction), index)

    def resolve(self, tables: Iterable[Table]) -> ResolvedPolicy:
        """Give every site of the tables its codec. Does not check globs (a module may hold only some of a model's tables).

        Args:
            tables: a name may come twice with the same sizes (two modules that share a name), and then counts once.

        Raises:
            PolicyError: one name comes with different sizes.
        """
        known: dict[str, Table] = {}
        for table in tables:
            first = known.setdefault(table.name, table)
            if first != table:
                wrong = "two tables of one name have different sizes, so a rule cannot tell them apart"
                got, allowed = f"{table.rows} x {table.dim}", f"{first.rows} x {first.dim}"
                raise PolicyError(describe(f"table {table.name!r}", wrong, got=got, allowed=allowed, todo="Rename one."))
        decisions = {
            Site(What.TABLE, table.name, direction, link): self.decide(table, direction, link)
            for table in known.values()
            for direction in Direction
            for link in Link
        }
        return ResolvedPolicy(tuple(known.values()), decisions)

    def check_matched(self, table_names: Iterable[str], where: str = "") -> None:
        """Refuse globs that match no table; give it all the tables of a model.

        Args:
            table_names: of all the tables.
            where: put before ``rules.0.tables`` in messages: a file and a key path.

        Raises:
            PolicyError: names every such rule by its index, with its glob, the known tables and the nearest of them.
        """
        names = sorted(set(table_names))
        problems = [
            unmatched_glob(f"{where}rules.{index}.tables", glob, names)
            for index, rule in enumerate(self.rules)
            for glob in rule.unmatched_globs(names)
        ]
        if problems:
            raise PolicyError("\n".join(problems))

    def _first(self, table: Table, direction: Direction, link: Link) -> int | None:
        for index, rule in enumerate(self.rules):
            if rule.codec(direction) is not None and rule.matches(table, link):
                return index
        return None
