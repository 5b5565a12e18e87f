"""Plans this engine: the model whole or shared out over ranks, on one device or on others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from metpipe.circuit import Ranks
from metpipe.memory.devices import Device
from metpipe.memory.parallel import Parallel
from metpipe.memory.point import Point, Workload
from metpipe.memory.registry import read_devices
from metpipe.memory.serve import Serve, serve_from_config
from metpipe.resources import kernels_dir
from metpipe.stages.devices import planned_device
from metpipe.stages.live import Live
from metpipe.stages.planned_model import planned_model, set_for, shared_model
from metpipe.stages.served import served

__all__ = ["max_positions", "on_other_devices", "own_point"]


def own_point(live: Live) -> Point:
    """The run's question about this engine.

    Raises:
        ConfigError: a flag that it does not allocate for; what the ranks cannot share.
    """
    run, load = live.run, live.run.workload
    serve, device = serve_from_config(run.serve.model_dump()), planned_device(run)
    config, circuit = served(live)
    parallel = _parallel(live, serve, device)
    return Point(
        planned=parallel.stages[0].planned
        if parallel
        else planned_model(config, circuit, set_for(device)),
        device=device,
        serve=serve,
        workload=Workload(load.isl, load.osl, load.concurrency),
        slots=run.num_slots,
        slots_follow=run.slots_follow,
        parallel=parallel,
        max_positions=max_positions(live.checkpoint().config),
    )


def on_other_devices(live: Live, point: Point) -> tuple[Point, ...]:
    """The point on every GPU of the registry, under the same demands on a device."""
    return tuple(_on(live, point, device) for device in _gpus(point.device))


def max_positions(config: Mapping[str, object]) -> int | None:
    """The longest sequence that a model was made for, as its config says; None where it doesn't."""
    inner = config.get("text_config")
    for part in (config, inner):
        if isinstance(part, Mapping) and isinstance(found := part.get(KEY), int):
            return found
    return None


KEY = "max_position_embeddings"


def _gpus(asked: Device) -> Iterator[Device]:
    for device in read_devices(kernels_dir() / "DEVICES.toml").by_id.values():
        if device.kind == "gpu":
            yield replace(device, strict=asked.strict, require_calibrated=asked.require_calibrated)


def _on(live: Live, point: Point, device: Device) -> Point:
    """With the plans of the device's own kernel set; met's are of the CPU's everywhere."""
    moved = replace(point, device=device)
    if point.met is not None or set_for(device) == set_for(point.device):
        return moved
    if parallel := _parallel(live, point.serve, device):
        return replace(moved, parallel=parallel, planned=parallel.stages[0].planned)
    return replace(moved, planned=planned_model(*served(live), set_for(device)))


def _parallel(live: Live, serve: Serve, device: Device) -> Parallel | None:
    ranks = Ranks(
        serve.tensor_parallel_size, serve.pipeline_parallel_size, serve.expert_parallel_size
    )
    return None if ranks.count == 1 else shared_model(*served(live), ranks, set_for(device))
