"""Adds the hops of tables up to exchanges: bytes per rank and reach, bytes from host to host, and values by codec.

There are two ways to the same sums. Expected numbers differ between the peers of an owner by a factor only. So owners are
added up first and multiplied with their peers at the end, and no array has an entry for each pair of ranks. With given batches,
every table has numbers of its own, and each pair of ranks is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from torchrec_qcomm.codecs import CodecSpec
from torchrec_qcomm.planner.forecast.placement import Peers
from torchrec_qcomm.planner.forecast.row_sizes import LinkSizes
from torchrec_qcomm.planner.forecast.table_hops import TableHop
from torchrec_qcomm.planner.job import LINK_INDEX, LINKS, REACHES

_FAR = len(LINKS) - 1
ByCodec = dict[CodecSpec, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """What the tables of one output dist move in one hop, with the codecs of one direction.

    In backward the same goes the other way, so ranks are called by what they have: owners have rows, samples' ranks samples.

    Attributes:
        owners, samples: ``[world, reach]`` bytes at the ranks that own rows, and at those that have the samples.
        hosts: ``[hosts, hosts]`` bytes by host of the owner, and of the samples.
        owner_values, sample_values: for each codec, ``[world]`` values of those bytes.
        gradient_values: likewise, where a rank sends the same to every owner and encodes it once for each distinct codec.
    """

    owners: np.ndarray
    samples: np.ndarray
    hosts: np.ndarray
    owner_values: ByCodec
    sample_values: ByCodec
    gradient_values: ByCodec


class Amount(NamedTuple):
    """``[reach]`` bytes and values."""

    nbytes: np.ndarray
    values: np.ndarray


class Sums(Protocol):
    """Adds tables up."""

    def add(self, hop: TableHop, sizes: LinkSizes) -> Amount:
        """Add a table; returns what it alone comes to."""
        ...

    def moved(self) -> Moved:
        """All of them together."""
        ...


class Expected:
    """Sums of hops that share one ``unit``: expected numbers."""

    def __init__(self, peers: Peers, unit: np.ndarray) -> None:
        self._peers, self._unit, self._any = peers, unit, (unit > 0).astype(float)
        self._reached, self._reached_any = peers.spread(unit), peers.spread(self._any)
        self._bytes, self._headers = np.zeros((len(unit), len(LINKS))), np.zeros((len(unit), len(LINKS)))
        self._values: ByCodec = {}  # [world, link], for one unit

    def add(self, hop: TableHop, sizes: LinkSizes) -> Amount:
        """See `Sums`."""
        values = hop.scale * hop.dims
        _count_values(self._values, hop, sizes, values)
        each = hop.scale[:, None] * sizes.row_bytes
        add_up(self._bytes, hop, each)
        nbytes = _over_reach(hop, each, self._reached)
        if (headers := sizes.range_headers).any():
            once = (hop.first & (hop.scale > 0))[:, None] * headers
            add_up(self._headers, hop, once)
            nbytes += _over_reach(hop, once, self._reached_any)
        return Amount(nbytes, values @ (self._reached if hop.everywhere else self._reached[hop.owners]))

    def moved(self) -> Moved:
        """See `Sums`."""
        peers, unit, some = self._peers, self._unit, self._any
        owners, samples = self._both_ends(self._bytes, self._reached, unit)
        hosts = peers.across_hosts(self._bytes[:, _FAR], unit)
        if self._headers.any():
            more = self._both_ends(self._headers, self._reached_any, some)
            owners, samples = owners + more[0], samples + more[1]
            hosts += peers.across_hosts(self._headers[:, _FAR], some)
        if len(hosts):
            hosts[np.diag_indices(len(hosts))] += np.bincount(peers.host, owners[:, :2].sum(axis=1))
        ends = {spec: self._both_ends(each, self._reached, unit) for spec, each in self._values.items()}
        gradients = {spec: each * unit[:, None] for spec, each in self._values.items()}
        return Moved(
            owners,
            samples,
            hosts,
            {spec: owner.sum(axis=1) for spec, (owner, _) in ends.items()},
            {spec: sample.sum(axis=1) for spec, (_, sample) in ends.items()},
            _once(peers, gradients),
        )

    def _both_ends(self, each: np.ndarray, reached: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return each[:, LINK_INDEX] * reached, unit[:, None] * self._peers.by_link(each)


class Counted:
    """Sums of hops with numbers of their own: those of given batches."""

    def __init__(self, peers: Peers) -> None:
        world = len(peers.label)
        self._peers = peers
        self._owners, self._samples = np.zeros((world, len(REACHES))), np.zeros((world, len(REACHES)))
        self._hosts = peers.no_hosts()
        self._owner_values: ByCodec = {}
        self._sample_values: ByCodec = {}
        self._gradients: ByCodec = {}

    def add(self, hop: TableHop, sizes: LinkSizes) -> Amount:
        """See `Sums`."""
        reach = self._peers.reach(hop.owners)
        rows = hop.pairs(reach)
        nbytes = wire_bytes(hop, sizes, reach, rows)
        values = rows * hop.dims[:, None]
        amount = Amount(np.zeros(len(REACHES)), np.zeros(len(REACHES)))
        for index in range(len(REACHES)):
            there = np.where(reach == index, nbytes, 0)
            np.add.at(self._owners[:, index], hop.owners, there.sum(axis=1))
            self._samples[:, index] += there.sum(axis=0)
            amount.nbytes[index] = there.sum()
            amount.values[index] = values[reach == index].sum()
        if len(self._hosts):
            host = self._peers.host
            by_host = np.zeros((len(self._hosts), len(hop.owners)))
            np.add.at(by_host, host, nbytes.T)
            np.add.at(self._hosts, host[hop.owners], by_host.T)
        for link, codec in enumerate(sizes.codecs):
            there = np.where(LINK_INDEX[reach] == link, values, 0)
            for kept, sums in (
                (self._owner_values, np.bincount(hop.owners, there.sum(axis=1), len(self._owners))),
                (self._sample_values, there.sum(axis=0)),
            ):
                kept[codec.spec] = kept.get(codec.spec, 0) + sums
        if hop.summed:
            _count_values(self._gradients, hop, sizes, hop.scale * hop.dims * hop.unit[hop.owners])
        return amount

    def moved(self) -> Moved:
        """See `Sums`."""
        gradients = _once(self._peers, self._gradients)
        return Moved(self._owners, self._samples, self._hosts, self._owner_values, self._sample_values, gradients)


def wire_bytes(hop: TableHop, sizes: LinkSizes, reach: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """``[owners, world]``: the bytes of ``rows [owners, world]`` on the wire."""
    link = LINK_INDEX[reach]
    row_bytes = np.broadcast_to(sizes.row_bytes, (len(hop.owners), len(LINKS)))
    nbytes = rows * np.take_along_axis(row_bytes, link, axis=1)
    if (headers := sizes.range_headers).any():
        # A rank sends one header for all its shards of the table.
        same = hop.owners[:, None] == hop.owners
        nbytes = nbytes + hop.first[:, None] * ((same @ rows) > 0) * headers[link]
    return nbytes


def add_up(sums: np.ndarray, hop: TableHop, each: np.ndarray) -> None:
    """Add ``each [owners, ...]`` to ``sums [world, ...]``."""
    if hop.everywhere:
        sums += each
    else:
        np.add.at(sums, hop.owners, each)  # a rank may own two shards


def _count_values(kept: ByCodec, hop: TableHop, sizes: LinkSizes, values: np.ndarray) -> None:
    """Add ``values [owners]`` to ``kept[codec] [world, link]``."""
    for link, codec in enumerate(sizes.codecs):
        add_up(kept.setdefault(codec.spec, np.zeros((len(hop.unit), len(LINKS))))[:, link], hop, values)


def _over_reach(hop: TableHop, each: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """``[reach]``: the sum over owners of ``each [owners, link]``, times the samples that they reach."""
    return np.einsum("or,or->r", each[:, LINK_INDEX], reached if hop.everywhere else reached[hop.owners])


def _once(peers: Peers, values: ByCodec) -> ByCodec:
    """``[world]`` values that are encoded, of ``[world, link]``: links with the same codecs share what is encoded."""
    if not values:
        return {}
    there = peers.spread(np.ones(len(peers.label))) > 0
    present = np.stack([there[:, link == LINK_INDEX].any(axis=1) for link in range(len(LINKS))], axis=1)
    encoded = present.copy()
    for later in range(len(LINKS)):
        for link in range(later):
            alike = np.all([each[:, link] == each[:, later] for each in values.values()], axis=0)
            encoded[:, later] &= ~(present[:, link] & alike)
    return {spec: (each * encoded).sum(axis=1) for spec, each in values.items()}
