"""One question to the evaluator: which model, on which device, with which flags, at which load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.errors import ConfigError
from metpipe.memory.devices import Device
from metpipe.memory.planned import Planned

__all__ = ["Boot", "Point", "Serve", "Workload", "refuse_impossible", "serve_from_config"]


@dataclass(frozen=True, slots=True)
class Serve:
    """The serve flags that size something; lengths in tokens."""

    max_seq_len: int
    max_batch_size: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    ssm_h_dtype: str
    block_size: int
    max_prefill_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """`concurrency` sequences in flight, each of `isl` prompt and `osl` generated tokens."""

    isl: int
    osl: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Boot:
    """What an engine really sized, when the plan is checked against its ledger.

    `runs` are the programs it compiled: (mode, rows) pairs, rows as launched.
    """

    kv_blocks: int
    slots: int
    runs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """Everything that `evaluate` reads. Points of one model share its `planned` cache.

    `slots` (None: max_batch_size) sizes the pool of recurrent states and bounds the concurrency.
    `threads` is what a workspace expression may name; None when no machine executes.
    """

    planned: Planned
    device: Device
    serve: Serve
    workload: Workload
    accounting: str = "metpipe"
    slots: int | None = None
    threads: int | None = None
    boot: Boot | None = None

    @property
    def num_slots(self) -> int:
        """Sequences that the pool of states has room for, without the dummy."""
        return self.serve.max_batch_size if self.slots is None else self.slots

    @property
    def num_tokens(self) -> int:
        """Tokens of a finished sequence."""
        return self.workload.isl + self.workload.osl


OFF: Mapping[str, tuple[object, ...]] = {
    "speculative": (False,),
    "dflash": (False,),
    "enable_prefix_caching": (False,),
    "high_speed_swap": (False,),
    "weight_quantization": ("declared", "bf16"),
    "expert_quantization": ("declared", "bf16"),
    "lm_head_dtype": ("default", "bf16"),
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "expert_parallel_size": (1,),
    "rank": (0,),
}
"""Flags that this engine does not serve yet -> the values that ask for nothing."""

SLEEPING = frozenset(
    {
        "dflash_gamma",
        "num_drafts",
        "mtp_max_seqs",
        "mtp_quantization",
        "ssm_rollback_mode",
        "ssm_cache_slots",
        "ssm_decode_ring_slots",
    }
)
"""Flags that size nothing while speculation and prefix caching are off."""


def serve_from_config(flags: Mapping[str, object]) -> Serve:
    """The serve flags of a config as the `metpipe` accounting reads them.

    Raises:
        ConfigError: a flag that is missing or unknown, of a wrong type, or asks for what this
            engine does not allocate.
    """
    names = tuple(Serve.__dataclass_fields__)
    if unknown := set(flags) - set(names) - set(OFF) - SLEEPING:
        raise ConfigError(f"serve.{min(unknown)}: not a serve flag that this accounting knows")
    for name, neutral in OFF.items():
        if name in flags and flags[name] not in (None, *neutral):
            raise ConfigError(
                f"serve.{name}={_typed(flags[name])}: this engine allocates nothing for it yet, so "
                f"the metpipe accounting cannot count it; set serve.{name}={_typed(neutral[0])}"
            )
    if missing := [name for name in names if flags.get(name) is None]:
        raise ConfigError(f"serve.{missing[0]}: the memory plan needs it; set serve.{missing[0]}")
    return Serve(
        max_seq_len=_count(flags, "max_seq_len"),
        max_batch_size=_count(flags, "max_batch_size"),
        gpu_memory_utilization=_share(flags, "gpu_memory_utilization"),
        kv_cache_dtype=_text(flags, "kv_cache_dtype"),
        ssm_h_dtype=_text(flags, "ssm_h_dtype"),
        block_size=_count(flags, "block_size"),
        max_prefill_tokens=_count(flags, "max_prefill_tokens"),
    )


def refuse_impossible(point: Point) -> None:
    """What no serve can do, before anything is counted.

    Raises:
        ConfigError: more sequences than slots, a sequence longer than the serve allows, a count
            below one, a device without a known size, a utilisation that the device refuses.
    """
    _refuse_counts(point)
    load, serve = point.workload, point.serve
    if load.concurrency > point.num_slots:
        raise ConfigError(
            f"workload.concurrency={load.concurrency} is more than the {point.num_slots} slots; "
            "lower it, or raise serve.max_batch_size (or slots, where it is given)"
        )
    if point.num_tokens > serve.max_seq_len:
        raise ConfigError(
            f"workload.isl={load.isl} and workload.osl={load.osl} are {point.num_tokens} tokens, "
            f"above serve.max_seq_len={serve.max_seq_len}; shorten the workload or raise "
            "serve.max_seq_len"
        )
    _refuse_device(point.device, serve.gpu_memory_utilization)


def _refuse_counts(point: Point) -> None:
    counts = {
        "serve.block_size": point.serve.block_size,
        "serve.max_seq_len": point.serve.max_seq_len,
        "serve.max_prefill_tokens": point.serve.max_prefill_tokens,
        "slots": point.num_slots,
        "workload.isl": point.workload.isl,
        "workload.osl": point.workload.osl,
        "workload.concurrency": point.workload.concurrency,
    }
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name}: must be at least 1, got {count}")


def _refuse_device(device: Device, utilization: float) -> None:
    where = f"serve.gpu_memory_utilization={utilization}"
    if not 0 < utilization <= 1:
        raise ConfigError(f"{where}: a share above 0 and at most 1 is needed")
    if device.memory_bytes is None:
        raise ConfigError(f"hardware={device.id}: its memory is unknown; set hardware.memory_bytes")
    if device.strict and device.driver is not None and utilization > device.driver.util_ceiling:
        raise ConfigError(
            f"{where} is above the ceiling {device.driver.util_ceiling} of {device.device_class}; "
            "lower it or set hardware.strict=false"
        )
    if device.require_calibrated and device.kind == "gpu" and device.driver is None:
        raise ConfigError(
            f"hardware={device.id}: the class {device.device_class} declares no [memory] table, so "
            "its driver term is a range; choose a calibrated device or set "
            "hardware.require_calibrated=false"
        )


def _typed(value: object) -> str:
    """A value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(flags: Mapping[str, object], name: str) -> int:
    value = flags[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"serve.{name}: a whole number of at least 1 is needed, got {value!r}")
    return value


def _share(flags: Mapping[str, object], name: str) -> float:
    value = flags[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"serve.{name}: a share above 0 and at most 1 is needed, got {value!r}")
    return float(value)


def _text(flags: Mapping[str, object], name: str) -> str:
    value = flags[name]
    if not isinstance(value, str):
        raise ConfigError(f"serve.{name}: a name is needed, got {value!r}")
    return value
