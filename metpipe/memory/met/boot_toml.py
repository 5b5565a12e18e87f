"""Reads a boot's file, schema 1: what one start of met's engine allocated (section 23.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from metpipe.errors import ConfigError
from metpipe.memory.met.boot import RESERVES, TERMS, Boot, Measured
from metpipe.memory.met.side import BootPools
from metpipe.memory.met.versions import VERSIONS
from metpipe.memory.toml_model import Strict, parse_model

__all__ = ["parse_boot"]

GB = 10**9
"""The ledger's totals are decimal."""

Pair = Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=2, max_length=2)]
SLOTS = "max_batch_size"
AUTO = "auto"
"""The value of SLOTS that asks for as many as there are sequences."""


class _Boot(Strict):
    kv_blocks: int = Field(gt=0)
    draft_kv_blocks: int = Field(ge=0)
    capture_rows: int = Field(ge=0)
    outside_bytes: int = Field(ge=0)
    chunk_slack_gb: float = Field(ge=0)
    ledger_total_gb: float = Field(gt=0)
    slots: int | None = Field(default=None, gt=0)


class _File(Strict):
    schema_version: Literal[1] = Field(alias="schema")
    accounting: Literal["met"]
    checkpoint: str = Field(min_length=1)
    hardware: str = Field(min_length=1)
    copies_version: int
    engine_version: int | None = None
    serve: dict[str, bool | int | float | str]
    boot: _Boot
    measured_mib: dict[str, Pair] = Field(min_length=1)
    reserve_mib: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)


def parse_boot(text: str, source: str) -> Boot:
    """The boot in a TOML text; `source` names it in messages.

    `engine_version` (memory/met/versions.py) is needed only where it is not the first one with
    these copy rules.

    Raises:
        ConfigError: broken TOML, an unknown or missing key, a value out of its range, no term, a
            term or reserve line that the accounting does not know, slots that are said twice.
    """
    file = parse_model(_File, text, source)
    _known(file.measured_mib, tuple(TERMS), f"{source}: measured_mib")
    _known(file.reserve_mib, RESERVES, f"{source}: reserve_mib")
    return Boot(
        checkpoint=file.checkpoint,
        hardware=file.hardware,
        version=_version(file, source),
        serve={flag: value for flag, value in file.serve.items() if (flag, value) != (SLOTS, AUTO)},
        pools=BootPools(file.boot.kv_blocks, file.boot.draft_kv_blocks),
        capture_rows=file.boot.capture_rows,
        outside_bytes=file.boot.outside_bytes,
        chunk_slack=round(file.boot.chunk_slack_gb * GB),
        total=round(file.boot.ledger_total_gb * GB),
        measured={term: Measured(*pair) for term, pair in file.measured_mib.items()},
        reserve=file.reserve_mib,
        source=source,
        slots_follow=_slots_follow(file, source),
        slots=file.boot.slots,
    )


def _slots_follow(file: _File, source: str) -> bool:
    """Whether the boot found out by itself how many slots it has."""
    follows = file.serve.get(SLOTS) == AUTO
    if file.boot.slots is not None and not follows:
        raise ConfigError(
            f'{source}: boot.slots is what serve.{SLOTS} = "{AUTO}" came to, and the file says '
            f"otherwise (serve.{SLOTS}); leave one of them out"
        )
    return follows


def _version(file: _File, source: str) -> int:
    number = file.copies_version if file.engine_version is None else file.engine_version
    if file.copies_version not in (1, 2) or number not in VERSIONS:
        raise ConfigError(
            f"{source}: copies_version is 1 or 2, engine_version one of "
            f"{', '.join(map(str, VERSIONS))}; it gives {file.copies_version} and {number}"
        )
    return number


def _known(table: Mapping[str, object], names: tuple[str, ...], where: str) -> None:
    if unknown := sorted(set(table) - set(names)):
        raise ConfigError(f"{where}.{unknown[0]}: not known here; known are {', '.join(names)}")
