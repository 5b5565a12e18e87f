"""Tiny configs, and their tensors, of the families that are planned and not executed."""

from __future__ import annotations

from metpipe.circuit import Circuit, Node, Resolved, resolve_checkpoint

from .families import frozen, library

TINY = frozen("family_configs.json")
"""Of random models, as transformers 5.24 saves them."""
TENSORS = frozen("family_tensors.json")
"""tensor name -> shape of those models' checkpoints"""


def changed(name: str, **keys: object) -> dict[str, object]:
    """A tiny config with other keys; `...` leaves one out. Of a nested one, inner keys."""
    config = TINY[name]
    if "text_config" in config:
        inner = {**config["text_config"], **keys}  # type: ignore[dict-item]
        inner = {key: value for key, value in inner.items() if value is not ...}
        return {**config, "text_config": inner}
    return {key: value for key, value in {**config, **keys}.items() if value is not ...}


def understood(config: dict[str, object]) -> Resolved:
    return resolve_checkpoint(config, library=library(), source="some/config.json")


def circuit_of(config: dict[str, object]) -> Circuit:
    return understood(config).circuit


def nodes_of(made: Circuit) -> dict[str, Node]:
    return {node.id: node for node in made.nodes}


def locals_of(made: Circuit, prefix: str) -> list[str]:
    """Local ids of the nodes of one block instance, `l0.attn`."""
    return [node.local for node in made.nodes if node.id.rpartition(".")[0] == prefix]
