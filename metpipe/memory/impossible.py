"""What no serve can do: refused before anything is counted."""

from __future__ import annotations

from metpipe.errors import ConfigError
from metpipe.memory.bounds import MOST
from metpipe.memory.devices import DeviceRefusal
from metpipe.memory.driver import doubt_of, law_of
from metpipe.memory.point import Point
from metpipe.nouns import number_of

__all__ = ["refuse_impossible", "refuse_load"]


def refuse_impossible(point: Point) -> None:
    """What no serve can do, before anything is counted.

    Raises:
        ConfigError: more sequences than slots, a sequence longer than the serve allows, a count
            below one or beyond i32, a device without a known size, a utilisation that the device
            refuses.
    """
    _refuse_counts(point)
    refuse_load(
        point,
        slots="; lower it, or raise serve.max_batch_size (or slots, where it is given)",
        length="; shorten the workload or raise serve.max_seq_len",
    )
    _refuse_device(point)


def refuse_load(point: Point, *, slots: str, length: str) -> None:
    """A load that the serve does not take; `slots` and `length` end the sentences with advice.

    Raises:
        ConfigError: more sequences than slots, or longer ones than the serve allows.
    """
    load, serve = point.workload, point.serve
    if load.concurrency > point.num_slots:
        raise ConfigError(
            f"workload.concurrency={load.concurrency} is more than the "
            f"{number_of(point.num_slots, 'slot')}{slots}"
        )
    if point.num_tokens > serve.max_seq_len:
        raise ConfigError(
            f"workload.isl={load.isl} and workload.osl={load.osl} are {point.num_tokens} tokens, "
            f"above serve.max_seq_len={serve.max_seq_len}{length}"
        )


def _refuse_counts(point: Point) -> None:
    counts = {
        "serve.block_size": point.serve.block_size,
        "serve.max_seq_len": point.serve.max_seq_len,
        "serve.max_prefill_tokens": point.serve.max_prefill_tokens,
        _who_says_slots(point): point.num_slots,
        "workload.isl": point.workload.isl,
        "workload.osl": point.workload.osl,
        "workload.concurrency": point.workload.concurrency,
    }
    if point.met is not None:
        what_ifs = point.met.what_ifs
        asked = {"tree_nodes": what_ifs.tree_nodes, "capture_rows": what_ifs.capture_rows}
        counts |= {name: count for name, count in asked.items() if count}
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name}: must be at least 1, got {count}")
        if count > MOST:
            raise ConfigError(
                f"{name}={count}: more than {MOST}, the most that positions and slots can name; "
                "lower it"
            )


def _who_says_slots(point: Point) -> str:
    if point.slots_follow:
        return "workload.concurrency"
    return "serve.max_batch_size" if point.slots is None else "slots"


def _refuse_device(point: Point) -> None:
    device, utilization = point.device, point.serve.gpu_memory_utilization
    where = f"serve.gpu_memory_utilization={utilization}"
    if not 0 < utilization <= 1:
        raise ConfigError(f"{where}: a share above 0 and at most 1 is needed")
    if device.memory_bytes is None:
        raise DeviceRefusal(
            f"hardware={device.id}: its memory is unknown; add +hardware.memory_bytes=BYTES",
            "their memory is unknown",
        )
    if device.strict and device.driver is not None and utilization > device.driver.util_ceiling:
        raise DeviceRefusal(
            f"{where} is above the ceiling {device.driver.util_ceiling} of {device.device_class}; "
            "lower it or set hardware.strict=false",
            f"{where} is above the ceiling of their class, and hardware.strict is true",
        )
    if device.require_calibrated and device.kind == "gpu" and law_of(point) is None:
        raise DeviceRefusal(
            f"hardware={device.id}: {doubt_of(point)}, so its driver term is a range; choose a "
            f"device that is calibrated for {point.accounting}'s engine, with one rank, or set "
            "hardware.require_calibrated=false",
            "their driver's part is a range, and hardware.require_calibrated is true",
        )
