"""From a checkpoint to a model that can run: kernel sets, circuit, memory check, weights, pools."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from metpipe.circuit import Circuit, Kernel, Rule, RuleSet, circuit_from_config, parse_fusions
from metpipe.engine.allocator import Allocator
from metpipe.engine.checkpoints import (
    Checkpoint,
    check_memory,
    check_tensors,
    required_memory,
)
from metpipe.engine.kernel_set import BUILT_IN, KernelSet, load_kernel_set
from metpipe.engine.model import Model, PoolSizes, allocate_states, allocate_step, pool_shapes
from metpipe.engine.pools import SequencePool
from metpipe.engine.runners import OVERLAY
from metpipe.engine.weights import load_weights, weight_shapes
from metpipe.errors import ConfigError
from metpipe.resources import kernels_dir

__all__ = ["KernelSets", "circuit_of", "open_kernel_sets", "open_model", "shapes_of_config"]

OVERLAY_PACKAGE = "metpipe_kernels.overlay"


@dataclass(frozen=True, slots=True)
class KernelSets:
    """The built-in set and, if the user gave a folder, theirs, with the rules of each."""

    builtin: KernelSet
    rules: RuleSet
    overlay: KernelSet | None = None
    overlay_rules: RuleSet | None = None

    @property
    def digests(self) -> dict[str, str]:
        """Set -> digest of all its sources and tables."""
        found = {"builtin": self.builtin.digest}
        if self.overlay is not None:
            found["overlay"] = self.overlay.digest
        return found

    def rules_for(self, *, overlay: bool) -> RuleSet:
        """The rules that a forward may use, the user's laid over the built-in ones or not."""
        if not overlay or self.overlay_rules is None:
            return self.rules
        return self.rules.overlay(self.overlay_rules)


def open_kernel_sets(device: str, overlay: str | None) -> KernelSets:
    """Load the set that executes on `device`, and the folder laid over it.

    Raises:
        ConfigError: a set or its rules cannot be read; `device` has no kernel set here.
    """
    if device not in ("auto", "cpu"):
        raise ConfigError(
            f"device={device}: no kernel set of this version executes there; use device=cpu, and "
            "hardware=ID to plan memory for another device"
        )
    builtin = load_kernel_set(kernels_dir() / "cpu", package=BUILT_IN)
    rules = _rules_of(builtin)
    if overlay is None:
        return KernelSets(builtin, rules)
    folder = Path(overlay).expanduser()
    theirs = load_kernel_set(folder, package=OVERLAY_PACKAGE)
    _refuse_other_hardware(theirs, builtin)
    return KernelSets(builtin, rules, theirs, _of_overlay(_rules_of(theirs), theirs, builtin))


def _refuse_other_hardware(theirs: KernelSet, builtin: KernelSet) -> None:
    """A folder's rules are planned as the built-in set says: what it says beside would be lost."""
    mine, own = theirs.hardware, builtin.hardware
    for key, stated, known in (
        ("class", {mine.hardware_class}, {own.hardware_class}),
        ("kind", {mine.kind}, {own.kind}),
        ("capabilities", mine.capabilities, own.capabilities),
        ("settings", mine.settings.items(), own.settings.items()),
    ):
        if beyond := set(stated) - set(known):
            raise ConfigError(
                f"{theirs.folder / 'HARDWARE.toml'}: {key} states {min(map(str, beyond))}, which "
                f"the set that executes does not ({builtin.folder}); a folder adds rules and "
                "kernels to that set, so leave it out or correct it"
            )


def _rules_of(kernels: KernelSet) -> RuleSet:
    path = kernels.folder / "FUSIONS.toml"
    return parse_fusions(kernels.texts["FUSIONS.toml"], str(path))


def _of_overlay(rules: RuleSet, theirs: KernelSet, builtin: KernelSet) -> RuleSet:
    """The user's rules, each kernel named where it lies: in their folder, else in the built-in set.

    Raises:
        ConfigError: a rule names a kernel that neither has.
    """

    def placed(rule: Rule) -> Rule:
        kernels = tuple(_placed(kernel, rule, theirs, builtin) for kernel in rule.kernels)
        return dataclasses.replace(rule, kernels=kernels)

    found = {rule.id: placed(rule) for rule in rules.rules.values()}
    return dataclasses.replace(rules, rules=found)


def _placed(kernel: Kernel, rule: Rule, theirs: KernelSet, builtin: KernelSet) -> Kernel:
    if kernel.name in theirs.functions:
        return dataclasses.replace(kernel, module=OVERLAY + kernel.module)
    if kernel.name in builtin.functions:
        return kernel
    raise ConfigError(
        f"{rule.source}, rule {rule.id}: there is no kernel {kernel.name!r} in {theirs.folder} or "
        f"in the built-in set; write it as the function {kernel.func} of {kernel.module}.py"
    )


def circuit_of(config: Mapping[str, object], source: str) -> Circuit:
    """The circuit of a config.json.

    Raises:
        ConfigError: a key is not classified, a value is refused, the family is unknown.
    """
    return circuit_from_config(config, kernels_dir(), source)


def shapes_of_config(config: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """The checkpoint tensors that a config implies."""
    return weight_shapes(circuit_of(config, "model.config"))


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
    sets.builtin.functions["environment.check_environment"]()
    shapes = weight_shapes(circuit)
    check_tensors(checkpoint, shapes)
    needed = required_memory(shapes) + required_memory(pool_shapes(circuit, sizes))
    check_memory(needed, what=f"weights and KV pools of {checkpoint.name}")
    allocator = Allocator(torch.device("cpu"))
    return Model(
        name=checkpoint.name,
        config=checkpoint.config,
        circuit=circuit,
        rules=sets.rules,
        kernels=sets.builtin,
        weights=load_weights(circuit, checkpoint, allocator, on_tensor),
        states=allocate_states(circuit, allocator, sizes),
        pool=SequencePool(sizes.num_blocks, sizes.num_slots, sizes.block_size),
        step=allocate_step(allocator, sizes),
        sizes=sizes,
        allocator=allocator,
        overlay=sets.overlay,
        overlay_rules=sets.overlay_rules,
    )
