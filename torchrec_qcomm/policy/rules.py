"""One rule of a policy: which sites it speaks about, and the codec it gives them in each direction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from types import NoneType
from typing import cast

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs.spec import CodecLike, CodecSpec
from torchrec_qcomm.errors import PolicyError, describe
from torchrec_qcomm.policy.globs import matches, without_match
from torchrec_qcomm.policy.sites import Direction, Link, Table


@dataclass(frozen=True, slots=True)
class Where:
    """Sizes of a table, bounds included; at least one must be given.

    >>> Where(max_rows=1000).matches(Table("t", rows=1000, dim=64))
    True
    """

    min_rows: int | None = None
    max_rows: int | None = None
    min_dim: int | None = None
    max_dim: int | None = None

    def __post_init__(self) -> None:
        bounds = {f.name: getattr(self, f.name) for f in fields(self)}
        if all(value is None for value in bounds.values()):
            raise PolicyError(
                describe("where", "no bound given", got={}, allowed=bounds, todo="Leave `where` out to match every size.")
            )
        for name, value in bounds.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise PolicyError(describe(f"where.{name}", "not a size", got=value, allowed="a whole number >= 0"))
        for what in ("rows", "dim"):
            low, high = bounds[f"min_{what}"], bounds[f"max_{what}"]
            if low is not None and high is not None and low > high:
                wrong = f"min_{what} is above max_{what}, so no table can match"
                raise PolicyError(describe(f"where.min_{what}", wrong, got=low, allowed=f"at most {high}"))

    def matches(self, table: Table) -> bool:
        """Whether the table's sizes are inside all the bounds."""
        return _inside(table.rows, self.min_rows, self.max_rows) and _inside(table.dim, self.min_dim, self.max_dim)


@dataclass(frozen=True, slots=True)
class Rule:
    """A codec for the sites that match ``tables``, ``where`` and ``link``, all three; what is left out matches everything.

    Attributes:
        tables: a glob over table names, or several (case matters); kept as a tuple.
        where: bounds on the sizes of the table.
        link: the one link that the rule speaks about.
        forward: the codec of lookups; kept as a ``CodecSpec``. ``None``: the rule does not decide it.
        backward: the codec of gradients, likewise.
        allow_unmatched: a glob that matches no table is not an error.

    Raises:
        PolicyError: the rule gives no codec, has an empty glob, or an unknown link.
        CodecError: a codec is unknown or does not take the parameters.

    >>> Rule(tables="t_*", forward="int4").matches(Table("t_0", rows=10, dim=8), Link.SELF)
    True
    """

    tables: str | tuple[str, ...] | None = None
    where: Where | None = None
    link: Link | str | None = None
    forward: CodecLike | None = None
    backward: CodecLike | None = None
    allow_unmatched: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        if self.tables is not None:
            object.__setattr__(self, "tables", (self.tables,) if isinstance(self.tables, str) else tuple(self.tables))
            if not self.globs or not all(isinstance(glob, str) and glob for glob in self.globs):
                todo = "Leave `tables` out to match every table."
                raise PolicyError(
                    describe("rule: tables", "empty or not text", got=self.tables, allowed="globs over table names", todo=todo)
                )
        if self.link is not None:
            if self.link not in list(Link):
                raise PolicyError(describe("rule: link", "unknown link", got=self.link, allowed=Link))
            object.__setattr__(self, "link", Link(self.link))
        if self.forward is None and self.backward is None:
            todo = "Give the rule a codec for at least one direction."
            raise PolicyError(describe("rule", "it decides nothing", got=None, allowed=Direction, todo=todo))
        for direction in Direction:
            like = getattr(self, direction)
            if like is not None:
                object.__setattr__(self, direction, codecs.spec(like))

    def _check_types(self) -> None:
        for name, value, kinds, allowed in (
            ("tables", self.tables, (str, tuple, list, NoneType), "a glob, or several"),
            ("where", self.where, (Where, NoneType), "a torchrec_qcomm.Where"),
            ("allow_unmatched", self.allow_unmatched, bool, "True or False"),
        ):
            if not isinstance(value, kinds):
                raise PolicyError(describe(f"rule: {name}", "of the wrong type", got=value, allowed=allowed))

    @property
    def globs(self) -> tuple[str, ...]:
        """The globs over table names; empty if the rule has none."""
        return cast("tuple[str, ...]", self.tables or ())

    def codec(self, direction: Direction) -> CodecSpec | None:
        """The codec that the rule gives to a direction; ``None``: it does not decide that direction."""
        return cast("CodecSpec | None", self.forward if direction == Direction.FORWARD else self.backward)

    def covers(self, table: Table) -> bool:
        """Whether name and sizes of the table match, on whatever link."""
        return (not self.globs or matches(table.name, self.globs)) and (self.where is None or self.where.matches(table))

    def matches(self, table: Table, link: Link) -> bool:
        """Whether the rule speaks about this table on this link (it may still leave a direction undecided)."""
        return self.link in (None, link) and self.covers(table)

    def unmatched_globs(self, table_names: Iterable[str]) -> tuple[str, ...]:
        """The globs of the rule that match none of the names; none of them if ``allow_unmatched``."""
        return () if self.allow_unmatched else without_match(self.globs, tuple(table_names))


def _inside(value: int, low: int | None, high: int | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)
