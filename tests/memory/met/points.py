"""Points of the met accounting, as the shell prepares them: shipped models, rules and defaults."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import yaml

from metpipe.circuit import Circuit, Select, circuit_from_config
from metpipe.memory import Planned, Point, Workload, read_devices, read_kernel_set
from metpipe.memory.met.behaviour import stated_outside
from metpipe.memory.met.behaviour_toml import parse_behaviour
from metpipe.memory.met.copies_toml import parse_copies
from metpipe.memory.met.decision import decided
from metpipe.memory.met.flags import met_flags, met_serve
from metpipe.memory.met.prepare import met_model, prepare
from metpipe.memory.met.side import MetModel, Outside, WhatIfs
from metpipe.memory.met.versions import version
from metpipe.resources import conf_dir, kernels_dir

MIB = 1 << 20
GB10_BYTES = 130_663_886_848
"""What a boot on gb10 saw; the registry's rounded figure is 10.5 MB larger."""
DEFAULT = yaml.safe_load((conf_dir() / "serve" / "default.yaml").read_text())
RECIPE_27B = {
    "max_seq_len": 32768,
    "max_batch_size": 1,
    "kv_cache_dtype": "bf16",
    "lm_head_dtype": "bf16",
    "weight_quantization": "nvfp4",
    "enable_prefix_caching": True,
    "ssm_cache_slots": 256,
    "speculative": True,
    "num_drafts": 3,
    "mtp_quantization": "bf16",
}
RECIPE_35B_NVFP4 = {
    "max_seq_len": 262144,
    "kv_cache_dtype": "fp8",
    "weight_quantization": "nvfp4",
    "enable_prefix_caching": True,
    "ssm_cache_slots": 128,
    "speculative": True,
    "num_drafts": 1,
    "mtp_quantization": "bf16",
}
RECIPE_122B = {
    "max_seq_len": 16384,
    "max_batch_size": 1,
    "kv_cache_dtype": "fp8",
    "weight_quantization": "nvfp4",
}


@cache
def devices():
    return read_devices(kernels_dir() / "DEVICES.toml")


@cache
def config_of(choice: str):
    return yaml.safe_load((conf_dir() / "model" / f"{choice}.yaml").read_text())


@cache
def circuit_of(choice: str) -> Circuit:
    return circuit_from_config(config_of(choice)["config"], kernels_dir())


@cache
def planned_of(choice: str) -> Planned:
    config = config_of(choice)["config"]
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    kernel_set = read_kernel_set(kernels_dir() / "cpu")
    return Planned(circuit_from_config(plain, kernels_dir()), kernel_set, Select.all())


@cache
def behaviours():
    folder = kernels_dir() / "behaviour"
    return tuple(
        parse_behaviour(path.read_text(), path.name) for path in sorted(folder.glob("*.toml"))
    )


@cache
def model_of(choice: str, number: int) -> MetModel:
    engine = version(number)
    rules = parse_copies((kernels_dir() / "circuits" / engine.copies).read_text(), engine.copies)
    return met_model(circuit_of(choice), rules, behaviours(), engine)


def point_of(
    choice: str,
    serve: dict[str, object],
    load: tuple[int, int, int] = (1, 1, 1),
    *,
    number: int = 2,
    outside: int | None = None,
    device: str = "gb10",
    **what_ifs: object,
) -> Point:
    """A point whose expert tables are decided; `load` is ISL, OSL, C."""
    flags = DEFAULT | serve
    if outside is None:
        outside = stated_outside(behaviours(), config_of(choice)["checkpoint_id"])
    side = prepare(
        model_of(choice, number), met_flags(flags), Outside(outside, "a test"), WhatIfs(**what_ifs)
    )
    return decided(
        Point(
            planned=planned_of(choice),
            device=devices().by_id[device],
            serve=met_serve(flags, model_of(choice, number).kv_dtype),
            workload=Workload(*load),
            accounting="met",
            met=side,
        )
    )


def exact(point: Point) -> Point:
    """The point on a gb10 of the size that a boot saw."""
    return replace(point, device=replace(point.device, memory_bytes=GB10_BYTES))


def mib(report) -> dict[str, float]:
    """Term -> MiB."""
    return {term.id: term.low / MIB for term in report.terms}
