"""The policy applied to tables: one codec for each site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchrec_qcomm.codecs.spec import CodecSpec
from torchrec_qcomm.errors import PolicyError, describe
from torchrec_qcomm.policy.sites import Direction, Link, Site, Table, What

LOSSLESS = frozenset({"none", "fp32"})
"""Codecs that move an FP32 payload bit for bit."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for one site.

    Attributes:
        codec: the codec.
        rule: index of the rule that decided; ``None``: the default did.
    """

    codec: CodecSpec
    rule: int | None


@dataclass(frozen=True, slots=True)
class ResolvedPolicy:
    """The codec of every site of some tables; made by ``Policy.resolve``.

    Attributes:
        tables: the tables, in the order given, each name once.
    """

    tables: tuple[Table, ...]
    _decisions: Mapping[Site, Decision] = field(hash=False)

    def codec(self, table: str, direction: Direction | str, link: Link | str) -> CodecSpec:
        """The codec of a site.

        Raises:
            PolicyError: the table, direction or link is not known here.
        """
        return self._decision(table, direction, link).codec

    def decided_by(self, table: str, direction: Direction | str, link: Link | str) -> int | None:
        """The index of the rule that decided a site; ``None``: the default did."""
        return self._decision(table, direction, link).rule

    def quantizes(self, table: str) -> bool:
        """Whether any site of the table has a codec other than ``none`` and ``fp32``."""
        return any(self.codec(table, direction, link).name not in LOSSLESS for direction in Direction for link in Link)

    def to_dict(self) -> dict[str, dict[str, dict[str, str]]]:
        """``{table: {direction: {link: codec}}}``, plain text throughout: what ranks compare."""
        return {
            table.name: {
                str(direction): {str(link): str(self.codec(table.name, direction, link)) for link in Link}
                for direction in Direction
            }
            for table in self.tables
        }

    def _decision(self, table: str, direction: Direction | str, link: Link | str) -> Decision:
        decision = self._decisions.get(Site(What.TABLE, table, direction, link))
        if decision is not None:
            return decision
        for what, value, allowed in (
            ("direction", direction, list(Direction)),
            ("link", link, list(Link)),
            ("table", table, [known.name for known in self.tables]),
        ):
            if value not in allowed:
                raise PolicyError(describe("resolved policy", f"unknown {what}", got=value, allowed=allowed))
        raise AssertionError((table, direction, link))
