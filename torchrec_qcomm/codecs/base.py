"""What a codec is: its contract, and the value that names it.

A *row* is one table shard's vector for one sample (pooled) or one id (sequence). A codec turns rows of ``dim`` values into
rows of ``row_bytes(dim)`` bytes and back. It knows nothing of ranks, tables or steps, and it keeps no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch

from torchrec_qcomm.errors import CodecError, WireError, describe

if TYPE_CHECKING:
    from torchrec_qcomm.codecs.parts.noise import Noise


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """The full name of a codec: what ranks compare, and what a policy holds.

    Attributes:
        name: a registered codec name, for example ``int8``.
        params: every parameter of the codec, defaults included, sorted by name.
        short: how it is printed; not compared.

    >>> str(CodecSpec("fp16", (("loss_scale", 1024.0),)))
    'fp16(loss_scale=1024.0)'
    """

    name: str
    params: tuple[tuple[str, Any], ...] = ()
    short: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.short or (self.name + self._suffix())

    def _suffix(self) -> str:
        return f"({', '.join(f'{k}={v}' for k, v in self.params)})" if self.params else ""


CodecLike = str | Mapping[str, Any] | CodecSpec


@runtime_checkable
class Codec(Protocol):
    """Rows of values <-> rows of bytes.

    Every codec takes any ``dim >= 1``, any number of rows (0 too), FP32, FP16 or BF16 values in any strides, and obeys:

    - same input, same bytes (from the same noise, if the codec is stochastic); an all-zero row decodes to exact zeros; a
      constant row to itself within the bound;
    - a non-finite value makes its whole row decode to NaN and touches no other row (``none`` and ``fp32`` move it as it is);
    - finite values outside the range that the format can hold saturate;
    - ``|decode(encode(x)) - x| <= error_bound(x)``, element by element.
    """

    @property
    def spec(self) -> CodecSpec:
        """The frozen value that names this codec fully."""
        ...

    def row_bytes(self, dim: int, dtype: torch.dtype = torch.float32) -> int:
        """Wire bytes of one row of ``dim`` values. ``dtype``, the payload's own, matters to ``none`` alone."""
        ...

    def check_payload(self, dtype: torch.dtype) -> None:
        """Say at construction whether payloads of ``dtype`` can be encoded; ``encode`` asks the same.

        Raises:
            CodecError: the codec does not take that dtype, or (``fp32`` on 16 bits) would make the payload larger.
        """
        ...

    @property
    def stochastic(self) -> bool:
        """Whether rounding is random, so that ``encode`` needs ``noise``."""
        ...

    @property
    def segment_bytes(self) -> int:
        """Bytes that travel once for all rows of a table between two ranks: a range that the rows share; mostly 0."""
        ...

    def within(self, head: torch.Tensor) -> Codec:
        """This codec with the range that ``head`` (``uint8 [..., segment_bytes]``) tells; itself where that is no byte.

        The leading dimensions of ``head`` are broadcast against those of the values but the first, which is the samples.
        """
        ...

    def encode(self, values: torch.Tensor, out: torch.Tensor | None = None, noise: Noise | None = None) -> torch.Tensor:
        """Encode ``values [..., dim]`` into ``uint8 [..., row_bytes(dim, values.dtype)]``.

        Args:
            values: FP32, FP16 or BF16, any strides.
            out: written and returned if given; the last dimension must be contiguous, the others may have any strides.
            noise: the random stream of a stochastic codec; others take no notice of it.

        Raises:
            CodecError: the dtype is not a float type that the codec takes.
            WireError: ``out`` has another shape or dtype.
        """
        ...

    def decode(
        self,
        data: torch.Tensor,
        dim: int,
        out: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """Decode ``data`` (``uint8 [..., row_bytes(dim, dtype)]``) into ``[..., dim]`` of ``dtype``.

        Args:
            data: encoded rows; the last dimension must be contiguous, the others may have any strides.
            dim: the number of values in a row.
            out: written and returned if given (its dtype is then the dtype); any strides, last dimension contiguous.
            dtype: of the result, when ``out`` is not given.

        Raises:
            WireError: ``data`` or ``out`` has the wrong shape or dtype.
        """
        ...

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        """The largest absolute error that the codec may make for each element: FP32, the shape of ``values``.

        Rounding of the result to a 16-bit payload dtype comes on top.
        """
        ...


class CodecDefaults:
    """What most codecs answer alike; a codec is a frozen dataclass whose fields are its parameters."""

    __slots__ = ()
    name: ClassVar[str]

    @property
    def spec(self) -> CodecSpec:
        return spec_of(self, self.name)

    @property
    def stochastic(self) -> bool:
        """Whether `encode` needs noise."""
        return False

    @property
    def segment_bytes(self) -> int:
        """Nothing but rows: they have all that decoding needs."""
        return 0


FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_float(codec: Codec, dtype: torch.dtype) -> None:
    """Raise ``CodecError`` unless ``dtype`` is one that every codec takes."""
    if dtype not in FLOAT_DTYPES:
        raise CodecError(
            describe(f"codec {codec.spec}", "unsupported dtype", got=str(dtype), allowed=[str(d) for d in FLOAT_DTYPES])
        )


def check_dim(codec: Codec, dim: int) -> None:
    """Raise ``WireError`` unless a row can have ``dim`` values."""
    if dim < 1:
        raise WireError(describe(f"codec {codec.spec}", "a row needs at least one value", got=dim, allowed="dim >= 1"))


def check_tensor(
    where: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype | tuple[torch.dtype, ...]
) -> None:
    """Raise ``WireError`` unless ``tensor`` has ``shape``, (one of) ``dtype`` and a contiguous last dimension."""
    dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
    if tensor.dtype not in dtypes:
        raise WireError(describe(where, "wrong dtype", got=str(tensor.dtype), allowed=[str(d) for d in dtypes]))
    if tuple(tensor.shape) != shape:
        raise WireError(describe(where, "wrong shape", got=list(tensor.shape), allowed=str(list(shape))))
    if tensor.numel() and shape[-1] > 1 and tensor.stride(-1) != 1:
        raise WireError(
            describe(where, "the last dimension must be contiguous", got=f"stride {tensor.stride(-1)}", allowed="stride 1")
        )


def check_decode(
    codec: Codec, data: torch.Tensor, dim: int, out: torch.Tensor | None, dtype: torch.dtype
) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and dtype that decoding ``data`` gives; raises unless ``data`` and ``out`` fit, see ``Codec.decode``."""
    dtype = dtype if out is None else out.dtype
    codec.check_payload(dtype)
    lead = tuple(data.shape[:-1])
    check_tensor(f"codec {codec.spec}, decode, data", data, (*lead, codec.row_bytes(dim, dtype)), torch.uint8)
    if out is not None:
        check_tensor(f"codec {codec.spec}, decode, out", out, (*lead, dim), dtype)
    return (*lead, dim), dtype


def params_of(codec: object) -> tuple[tuple[str, Any], ...]:
    """The parameters of a codec written as a frozen dataclass: its fields, sorted by name."""
    return tuple(sorted((f.name, getattr(codec, f.name)) for f in fields(codec)))  # type: ignore[arg-type]


def spec_of(codec: object, name: str) -> CodecSpec:
    """The spec of a codec written as a frozen dataclass; printed with the parameters that are not at their default.

    A parameter ``bits`` is printed as part of the name: ``qsgd4``.
    """
    changed = {f.name for f in fields(codec) if getattr(codec, f.name) != f.default}  # type: ignore[arg-type]
    params = params_of(codec)
    short = CodecSpec(f"{name}{dict(params).get('bits', '')}", tuple(p for p in params if p[0] in changed - {"bits"}))
    return CodecSpec(name, params, short=str(short))
