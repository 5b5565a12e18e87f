"""Which formats a plan's weights have: those that the checkpoint declares, or bf16 throughout."""

from __future__ import annotations

from collections.abc import Mapping

from metpipe.circuit import Circuit, Node
from metpipe.circuit.vocabulary import OPS
from metpipe.engine.opening import circuit_of
from metpipe.errors import ConfigError
from metpipe.memory import quantised_formats
from metpipe.stages.live import Live

__all__ = ["served"]


def served(live: Live) -> tuple[Mapping[str, object], Circuit]:
    """The config and the circuit to plan with, as `serve.weight_quantization` says.

    Raises:
        ConfigError: a flag asks for bf16 in one part of a checkpoint that is quantised there.
    """
    checkpoint, serve = live.checkpoint(), live.run.serve
    if serve.weight_quantization == "bf16" and "quantization_config" in checkpoint.config:
        config = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
        return config, circuit_of(config, checkpoint.source)
    circuit = live.circuit()
    _refuse_part("expert_quantization", serve.expert_quantization, _experts(circuit))
    _refuse_part("lm_head_dtype", serve.lm_head_dtype, _heads(circuit))
    return checkpoint.config, circuit


def _experts(circuit: Circuit) -> list[Node]:
    return [node for node in circuit.nodes if OPS[node.op].per_expert]


def _heads(circuit: Circuit) -> list[Node]:
    return [node for node in circuit.nodes if node.op == "lm_head" and node.section == "main"]


def _refuse_part(flag: str, value: str | None, nodes: list[Node]) -> None:
    """bf16 means nothing of its own where all is bf16; elsewhere it would be another checkpoint."""
    quantised = quantised_formats(nodes)
    if value == "bf16" and quantised:
        raise ConfigError(
            f"serve.{flag}=bf16: the checkpoint declares {', '.join(quantised)}, and the metpipe "
            f"accounting plans either the declared formats (serve.{flag} at its default) or bf16 "
            "throughout (serve.weight_quantization=bf16)"
        )
