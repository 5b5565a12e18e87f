"""From a checkpoint to a model that can run: circuit, memory check, weights, pools."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import torch

from metpipe.circuit import Circuit, circuit_from_config, parse_format
from metpipe.engine.allocation import (
    allocate_drafter,
    allocate_snapshots,
    allocate_states,
    allocate_step,
    pool_bytes,
    pool_shapes,
)
from metpipe.engine.allocator import Allocator
from metpipe.engine.checkpoints import (
    Checkpoint,
    check_memory,
    check_tensors,
    required_memory,
)
from metpipe.engine.kernel_sets import KernelSets
from metpipe.engine.model import Model
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.pools import SequencePool
from metpipe.engine.runners import LEGACY_FAMILIES
from metpipe.engine.scratch import reserve_scratch, scratch_bytes
from metpipe.engine.step_inputs import step_bytes, table_columns
from metpipe.engine.weights import load_weights, weight_shapes
from metpipe.errors import ConfigError
from metpipe.resources import kernels_dir

__all__ = [
    "check_environment",
    "check_executed",
    "check_room",
    "circuit_of",
    "needed_bytes",
    "one_plus_of_config",
    "open_model",
    "shapes_of_config",
]


def circuit_of(config: Mapping[str, object], source: str) -> Circuit:
    """The circuit of a config.json; `source`: the folder that holds it, or what else has it.

    Raises:
        ConfigError: a key is not classified, a value is refused, the family is unknown.
    """
    file = f"{source}/config.json" if os.path.isdir(source) else source
    return circuit_from_config(config, kernels_dir(), file)


def shapes_of_config(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """The checkpoint tensors that a config implies."""
    return weight_shapes(circuit_of(config, "model.config"))


def one_plus_of_config(config: Mapping[str, object]) -> frozenset[str]:
    """The norm weights w among them that scale by 1 + w."""
    return frozenset(
        f"{module}.weight"
        for node in circuit_of(config, "model.config").nodes
        if node.params.get("weight_form") == "one_plus"
        for module in node.binding
    )


def check_executed(checkpoint: Checkpoint, circuit: Circuit, sets: KernelSets) -> None:
    """Refuse, from headers alone, what this engine would not run as it was meant.

    Raises:
        ConfigError: the family or a weight's format is not executed, a tensor is missing or
            misshapen, or the process is not as the kernel set needs it.
    """
    _refuse_unexecuted(circuit, checkpoint.source)
    check_environment(sets)
    shapes = weight_shapes(circuit, checkpoint.tensors)
    _refuse_unread_biases(check_tensors(checkpoint, shapes), shapes, checkpoint.source)


def needed_bytes(
    checkpoint: Checkpoint, circuit: Circuit, sets: KernelSets, sizes: PoolSizes
) -> int:
    """Bytes of weights, pools and scratch, and of what grows with the longest sequence."""
    return _bytes_of_pools(checkpoint, circuit, sets, sizes) + _bytes_of_max_seq_len(circuit, sizes)


def _bytes_of_pools(
    checkpoint: Checkpoint, circuit: Circuit, sets: KernelSets, sizes: PoolSizes
) -> int:
    needed = required_memory(weight_shapes(circuit, checkpoint.tensors))
    needed += pool_bytes(circuit, pool_shapes(circuit, sizes))
    return needed + scratch_bytes(circuit, sets.builtin, sizes.max_seq_len)


def _bytes_of_max_seq_len(circuit: Circuit, sizes: PoolSizes) -> int:
    """The block table of a step, and one pair of rope tables: what grows with the longest sequence.

    A rope table is computed in f64 (three arrays at a time) before it is kept in f32.
    """
    columns = table_columns(sizes.max_seq_len, sizes.block_size)
    angles = sizes.max_seq_len * circuit.dims["head_dim"] // 2
    return step_bytes(sizes.max_rows, columns) + angles * (2 * 4 + 3 * 8)


def check_room(
    checkpoint: Checkpoint, circuit: Circuit, sets: KernelSets, sizes: PoolSizes
) -> None:
    """Refuse what this machine's free memory does not hold.

    Raises:
        ConfigError: saying how much is needed, and how much is free.
    """
    needed = _bytes_of_pools(checkpoint, circuit, sets, sizes)
    check_memory(needed, sets.device, what=f"weights and KV pools of {checkpoint.name}")
    needed += _bytes_of_max_seq_len(circuit, sizes)
    said = f"serve.max_seq_len={sizes.max_seq_len}: block table, rope tables, weights and KV pools"
    check_memory(needed, sets.device, what=said)


def open_model(
    checkpoint: Checkpoint,
    circuit: Circuit,
    sets: KernelSets,
    sizes: PoolSizes,
    on_tensor: Callable[[int], object] = lambda _: None,
) -> Model:
    """Check, then load: every weight once, the pools, the step buffers.

    Raises:
        ConfigError: a tensor is missing or misshapen, or this machine has too little memory.
    """
    check_executed(checkpoint, circuit, sets)
    check_room(checkpoint, circuit, sets, sizes)
    allocator = Allocator(sets.device)

    def take_scratch(num_bytes: int) -> torch.Tensor:
        return allocator.take("workspace", "parts", (num_bytes,), torch.uint8)

    reserve_scratch(circuit, sets.builtin, sizes.max_seq_len, take_scratch)
    return Model(
        name=checkpoint.name,
        config=checkpoint.config,
        circuit=circuit,
        sets=sets,
        weights=load_weights(circuit, checkpoint, allocator, on_tensor),
        states=allocate_states(circuit, allocator, sizes),
        snapshots=allocate_snapshots(circuit, allocator, sizes),
        drafter_hidden_SD=allocate_drafter(circuit, allocator, sizes),
        pool=SequencePool(sizes.num_blocks, sizes.num_slots, sizes.block_size),
        step=allocate_step(allocator, sizes),
        sizes=sizes,
        allocator=allocator,
    )


def check_environment(sets: KernelSets) -> None:
    """What the set asks of the process, before anything is loaded.

    Raises:
        ConfigError: the process is not so.
    """
    try:
        sets.builtin.functions["environment.check_environment"]()
    except RuntimeError as error:
        raise ConfigError(f"{sets.builtin.folder}: {error}") from error


def _refuse_unexecuted(circuit: Circuit, source: str) -> None:
    if circuit.arch not in LEGACY_FAMILIES:
        raise ConfigError(
            f"{source}: the family {circuit.arch} is not executed by this version, which has "
            f"forwards for {', '.join(LEGACY_FAMILIES)}; plan its memory with pipeline=memory"
        )
    for node in circuit.nodes:
        if node.weight_format is not None and parse_format(node.weight_format).is_quantised:
            raise ConfigError(
                f"{source}: declares the weight of {node.id} in {node.weight_format}, and this "
                "version executes bf16 weights only; plan its memory with pipeline=memory"
            )


def _refuse_unread_biases(
    unread: Sequence[str], shapes: Mapping[str, tuple[int, ...]], source: str
) -> None:
    """A bias beside a weight that is read is the layer's: without it another model runs."""
    for name in unread:
        if name.endswith(".bias") and f"{name.removesuffix('.bias')}.weight" in shapes:
            raise ConfigError(
                f"{source}: holds {name}, which its config does not mention (attention_bias, "
                "mlp_bias), so the model would run without it; correct the config"
            )
