"""The kernel sets of a run: the built-in one, and a user's folder laid over it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metpipe.circuit import Kernel, Rule, RuleSet, parse_fusions
from metpipe.engine.gpu import find_gpu
from metpipe.engine.kernel_set import (
    OVERLAY_PACKAGE,
    SHIPPED,
    KernelSet,
    load_kernel_set,
)
from metpipe.engine.promises import check_levers, parse_promises
from metpipe.engine.set_choice import SetChoice, choose_set
from metpipe.errors import ConfigError
from metpipe.resources import kernels_dir

__all__ = ["OVERLAY", "KernelSets", "open_kernel_sets"]

OVERLAY = "overlay/"
"""Before the name of a kernel that the user's folder brought."""


@dataclass(frozen=True, slots=True)
class KernelSets:
    """The built-in set and, if the user gave a folder, theirs, with the rules of each."""

    builtin: KernelSet
    rules: RuleSet
    overlay: KernelSet | None = None
    overlay_rules: RuleSet | None = None
    proven: bool = True
    """whether the built-in set is for this very class of hardware"""

    @property
    def device(self) -> torch.device:
        """Where the built-in set computes."""
        return torch.device(self.builtin.hardware.kind)

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

    def functions_for(self, *, overlay: bool) -> Mapping[str, Callable[..., Any]]:
        """The kernels that a forward may launch; the user's have OVERLAY before their names."""
        if not overlay or self.overlay is None:
            return self.builtin.functions
        theirs = {OVERLAY + name: function for name, function in self.overlay.functions.items()}
        return {**self.builtin.functions, **theirs}

    def kernel_digest(self, kernel: str) -> str:
        """The digest of a kernel of either set."""
        if self.overlay is not None and kernel.startswith(OVERLAY):
            return self.overlay.kernel_digest(kernel.removeprefix(OVERLAY))
        return self.builtin.kernel_digest(kernel)


def open_kernel_sets(device: str, overlay: str | None, *, strict: bool = False) -> KernelSets:
    """Load the set that executes on `device`, and the folder laid over it.

    auto: this machine's GPU if there is one, else the CPU. `strict`: a GPU that no set is proven on
    is refused, not run with the nearest set.

    Raises:
        ConfigError: a set or its rules cannot be read; `device` has no kernel set here.
    """
    chosen = choose_set(device, find_gpu() if device != "cpu" else None, strict=strict)
    builtin = _built_in(chosen)
    rules = _rules_of(builtin)
    _refuse_unknown_levers(builtin, rules)
    if overlay is None:
        return KernelSets(builtin, rules, proven=chosen.proven)
    folder = Path(overlay).expanduser()
    theirs = load_kernel_set(folder, package=OVERLAY_PACKAGE, on=builtin.package)
    _refuse_changed_process(builtin, theirs)
    _refuse_other_hardware(theirs, builtin)
    laid_over = _of_overlay(_rules_of(theirs), theirs, builtin)
    _refuse_unknown_levers(theirs, rules.overlay(laid_over))
    return KernelSets(builtin, rules, theirs, laid_over, proven=chosen.proven)


def _built_in(chosen: SetChoice) -> KernelSet:
    package = f"{SHIPPED}.{chosen.folder}"
    return load_kernel_set(kernels_dir() / chosen.folder, package=package, on=package)


def _refuse_unknown_levers(kernels: KernelSet, rules: RuleSet) -> None:
    """A promise behind a lever must be of one that some rule has."""
    path = str(kernels.folder / "INVARIANCE.toml")
    promises = parse_promises(kernels.texts["INVARIANCE.toml"], path)
    check_levers(promises, path, rules.levers)


def _refuse_changed_process(builtin: KernelSet, theirs: KernelSet) -> None:
    """A folder must not change how this process computes: both sides would change alike."""
    try:
        builtin.functions["environment.check_environment"]()
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"kernels={theirs.folder}: importing its modules changed how this process computes "
            f"({error}); take out what they set at import"
        ) from error


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
                "kernels to that set, so choose the set it is for (device=cpu or cuda), leave it "
                "out or correct it"
            )


def _rules_of(kernels: KernelSet) -> RuleSet:
    path = kernels.folder / "FUSIONS.toml"
    rules = parse_fusions(kernels.texts["FUSIONS.toml"], str(path))
    if rules.runtimes:
        raise ConfigError(
            f"{path}: the runtime condition {min(rules.runtimes)} plans two ways of one step, and "
            "this engine runs one; take it out, and let `when` or a lever choose"
        )
    return rules


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
