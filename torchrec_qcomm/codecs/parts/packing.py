"""Codes of few bits to bytes and back: each byte holds several codes, the first in the lowest bits; tail bits are zero."""

from __future__ import annotations

import torch

from torchrec_qcomm.codecs.parts.memory import Scratch

_TRITS = 5
"""Ternary codes in a byte: 3**5 = 243."""


def packed_bytes(dim: int, bits: int) -> int:
    """Bytes of ``dim`` codes of ``bits`` (8, 4, 2 or 1) each."""
    return -(-dim * bits // 8)


def trit_bytes(dim: int) -> int:
    """Bytes of ``dim`` ternary codes."""
    return -(-dim // _TRITS)


def pack(codes: torch.Tensor, bits: int, out: torch.Tensor, scratch: Scratch) -> None:
    """Pack codes.

    Args:
        codes: ``uint8 [..., 8 / bits * packed_bytes]``, contiguous, zero beyond the last code; overwritten.
        bits: 8 (which is a copy), 4, 2 or 1.
        out: ``uint8 [..., packed_bytes]``, any strides in the leading dimensions.
        scratch: for intermediate results.
    """
    if bits == 8:
        out.copy_(codes)
    while bits < 8:
        # Two neighbours are seen as one integer of twice the size, low | high << 8. It becomes low | high << bits in its lowest
        # byte.
        pairs = codes.view(torch.int16)
        last = bits == 4
        folded = scratch.take(f"packed {bits}", tuple(pairs.shape), torch.int16)
        torch.bitwise_right_shift(pairs, 8 - bits, out=folded).bitwise_or_(pairs)
        target = out if last else scratch.take(f"codes {bits}", tuple(pairs.shape), torch.uint8)
        target.copy_(folded)  # keeps the lowest byte
        codes, bits = target, bits * 2


def unpack(data: torch.Tensor, bits: int, scratch: Scratch) -> torch.Tensor:
    """The codes in ``data``, ``uint8 [..., 8 / bits * packed_bytes]``, contiguous; the counterpart of `pack`."""
    codes, width = data, 8
    while width > bits:
        width //= 2
        wide = scratch.take(f"wide {width}", tuple(codes.shape), torch.int16).copy_(codes)
        pairs = scratch.take(f"pairs {width}", tuple(codes.shape), torch.int16)
        torch.bitwise_left_shift(wide, 8 - width, out=pairs)
        mask = ((1 << width) - 1) * 0x0101
        codes = pairs.bitwise_or_(wide).bitwise_and_(mask).view(torch.uint8)
    return codes


def pack_trits(codes: torch.Tensor, out: torch.Tensor, scratch: Scratch) -> None:
    """Pack ternary codes: ``byte = c0 + 3 c1 + 9 c2 + 27 c3 + 81 c4``.

    Args:
        codes: ``uint8 [..., 5 * trit_bytes]`` of 0, 1, 2, contiguous, zero beyond the last code.
        out: ``uint8 [..., trit_bytes]``, any strides in the leading dimensions.
        scratch: for intermediate results.
    """
    groups = codes.view(*codes.shape[:-1], -1, _TRITS)
    total = scratch.take("trits", tuple(groups.shape[:-1]), torch.uint8).copy_(groups[..., _TRITS - 1])
    for i in reversed(range(_TRITS - 1)):
        total.mul_(3).add_(groups[..., i])
    out.copy_(total)


def unpack_trits(data: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """The ternary codes in ``data``, ``uint8 [..., 5 * trit_bytes]``, contiguous; the counterpart of `pack_trits`."""
    codes = scratch.take("untrits", (*data.shape, _TRITS), torch.uint8)
    rest = scratch.take("rest", tuple(data.shape), torch.int16).copy_(data)
    for i in range(_TRITS):
        third = torch.div(rest, 3, rounding_mode="floor")
        codes[..., i].copy_(rest - third * 3)
        rest = third
    return codes.view(*data.shape[:-1], -1)
