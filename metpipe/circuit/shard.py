"""One rank's circuit: a model shared out over ranks by tensor, pipeline and expert parallelism.

A rank's circuit is a circuit like any other, so whatever is worked out of circuits (weights,
states, plans, arenas) holds for a rank unchanged. Tensor parallelism divides the dims of heads and
of feed-forward widths, so a matrix is divided where one of its sides is such a width and stands
whole on every rank where none is. Expert parallelism divides the experts and nothing else. Pipeline
parallelism cuts the layers into stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from metpipe.circuit.formats import parse_format, weight_bytes
from metpipe.circuit.instantiate import instantiate
from metpipe.circuit.ir import BlockInstance, Circuit, Edge
from metpipe.circuit.weights import weight_matrix
from metpipe.errors import ConfigError
from metpipe.nouns import number_of

__all__ = ["Ranks", "layers_of", "shard"]

TENSOR, PIPELINE, EXPERT = (
    "serve.tensor_parallel_size",
    "serve.pipeline_parallel_size",
    "serve.expert_parallel_size",
)

DIVIDED = (
    "q_heads",
    "lin_k_heads",
    "lin_v_heads",
    "mamba_heads",
    "kda_heads",
    "o_groups",
    "inter",
    "moe_inter",
    "shared_inter",
    "vocab",
)
"""Dims of which each tensor-parallel rank has an equal share."""

REPLICATED = ("kv_heads", "g_kv_heads", "ssm_groups")
"""The same while there are enough; with more ranks than these, several ranks have the same one."""

WHOLE_OPS = frozenset({"router", "top_k"})
"""Every rank scores every expert, whichever it holds."""

LARGEST = 1024
"""Sizes up to here are looked at for the hint of a refusal."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many ranks share each layer, the layers, the experts. They multiply.

    Ranks of one stage stand together, and of those the ones that share the same experts.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def count(self) -> int:
        """All ranks."""
        return self.tensor * self.pipeline * self.expert

    @property
    def per_stage(self) -> int:
        """Ranks of one stage. All of them hold as much."""
        return self.tensor * self.expert


def shard(circuit: Circuit, ranks: Ranks, rank: int) -> Circuit:
    """The circuit of one rank of a whole model's circuit.

    A stage that is not the first reads its stream from outside (an edge without a producer); one
    that is not the last writes it as an output. The embedding is on the first stage, the head and
    the draft head on the last.

    Raises:
        ConfigError: a dim, the experts or the layers do not divide, or a matrix's share does not
            divide into the groups of its format.
        ValueError: the circuit was put together by hand, or there is no such rank.
    """
    if not 0 <= rank < ranks.count:
        raise ValueError(f"rank {rank} of {ranks.count}")
    divided = circuit if ranks.per_stage == 1 else _divided(circuit, ranks)
    if ranks.pipeline == 1:
        return divided
    return _cut(divided, layers_of(circuit, ranks, rank // ranks.per_stage))


def layers_of(circuit: Circuit, ranks: Ranks, stage: int) -> range:
    """The layers of a stage. What is left over goes to the stages before the last, from behind.

    Raises:
        ConfigError: fewer layers than stages.
    """
    layers, stages = len(circuit.layer_kinds), ranks.pipeline
    each, over = divmod(layers, stages)
    if not each:
        raise ConfigError(
            f"{PIPELINE}={stages}: the model has {number_of(layers, 'layer')}, and each stage "
            f"needs one; set it to {layers} or less"
        )
    sizes = [each + (stages - 1 - over <= index < stages - 1) for index in range(stages)]
    first = sum(sizes[:stage])
    return range(first, first + sizes[stage])


def _divided(whole: Circuit, ranks: Ranks) -> Circuit:
    """The circuit with a rank's dims; the scores of experts as they are."""
    if whole.blueprint is None:
        raise ValueError("only a circuit that was instantiated can be shared out")
    made = whole.blueprint
    shape = replace(made.shape, dims=_local(made.shape.dims, ranks))
    local = instantiate(made.description, shape, made.precision)
    nodes = tuple(
        node if node.op in WHOLE_OPS else mine
        for node, mine in zip(whole.nodes, local.nodes, strict=True)
    )
    kept = {edge for node in whole.nodes if node.op in WHOLE_OPS for edge in node.outputs}
    edges = {
        name: whole.edges[name] if name in kept else mine for name, mine in local.edges.items()
    }
    divided = replace(local, nodes=nodes, edges=edges)
    _check_groups(divided, ranks)
    return divided


def _local(dims: Mapping[str, int], ranks: Ranks) -> dict[str, int]:
    """The dims of a rank; all ranks of a stage have the same."""
    local = dict(dims)
    for name in _refusing(dims, ranks.tensor):
        raise ConfigError(
            f"{TENSOR}={ranks.tensor}: does not divide the model's {name}={dims[name]}; set it to "
            f"{_one_of(size for size in range(1, LARGEST) if not any(_refusing(dims, size)))}"
        )
    for name in (*DIVIDED, *REPLICATED):
        if dims.get(name):
            local[name] = max(1, dims[name] // ranks.tensor)
    if ranks.expert > 1:
        local["experts"] = _local_experts(dims.get("experts", 0), ranks.expert)
    return local


def _local_experts(experts: int, size: int) -> int:
    if not experts:
        raise ConfigError(f"{EXPERT}={size}: the model has no experts; set it to 1")
    if experts % size:
        divisors = _one_of(one for one in range(1, experts + 1) if experts % one == 0)
        raise ConfigError(
            f"{EXPERT}={size}: does not divide the model's experts={experts}; set it to {divisors}"
        )
    return experts // size


def _refusing(dims: Mapping[str, int], size: int) -> Iterator[str]:
    """Dims that `size` ranks cannot share."""
    for name in DIVIDED:
        if dims.get(name, 0) % size:
            yield name
    for name in REPLICATED:
        count = dims.get(name, 0)
        if count and count % size and size % count:
            yield name


def _one_of(sizes: Iterable[int]) -> str:
    listed = list(map(str, sizes))
    return f"one of {', '.join(listed)}" if len(listed) > 1 else listed[0]


def _check_groups(circuit: Circuit, ranks: Ranks) -> None:
    """A share that cuts a group of values in two has no size in its format."""
    for node in circuit.nodes:
        if node.weight_format is None or not parse_format(node.weight_format).is_quantised:
            continue
        out, k = weight_matrix(circuit, node)
        try:
            weight_bytes(node.weight_format, out, k)
        except ConfigError as problem:
            raise ConfigError(
                f"{TENSOR}={ranks.tensor}: a rank's share of {node.id} is {out} x {k}, and "
                f"{problem}; set it lower"
            ) from None


def _cut(circuit: Circuit, layers: range) -> Circuit:
    """The blocks of these layers, with the ends of the model that they reach."""
    blocks = [block for block in circuit.blocks if _is_held(circuit, block, layers)]
    kept = [index for block in blocks for index in range(block.first, block.last)]
    place = {old: new for new, old in enumerate(kept)}
    nodes = tuple(replace(circuit.nodes[old], index=new) for new, old in enumerate(kept))
    touched = {state for node in nodes for state in node.state}
    return replace(
        circuit,
        nodes=nodes,
        edges={edge.id: edge for edge in _cut_edges(circuit, place)},
        blocks=tuple(_moved(block, place) for block in blocks),
        layer_kinds=tuple(circuit.layer_kinds[layer] for layer in layers),
        dims={**circuit.dims, "layers": len(layers)},
        states={name: state for name, state in circuit.states.items() if name in touched},
    )


def _is_held(circuit: Circuit, block: BlockInstance, layers: range) -> bool:
    if block.layer is not None:
        return block.layer in layers
    first_layer = next(one.first for one in circuit.blocks if one.layer is not None)
    if block.first < first_layer:
        return layers.start == 0
    return layers.stop == len(circuit.layer_kinds)


def _moved(block: BlockInstance, place: Mapping[int, int]) -> BlockInstance:
    first = place[block.first]
    return replace(block, first=first, last=first + block.last - block.first)


def _cut_edges(circuit: Circuit, place: Mapping[int, int]) -> Iterator[Edge]:
    """Edges that a kept node writes or reads. One that is read elsewhere leaves the rank."""
    for edge in circuit.edges.values():
        readers = tuple(place[reader] for reader in edge.consumers if reader in place)
        producer = None if edge.producer is None else place.get(edge.producer)
        if producer is not None:
            leaves = edge.is_output or len(readers) < len(edge.consumers)
            yield replace(edge, producer=producer, consumers=readers, is_output=leaves)
        elif readers:
            yield replace(edge, producer=None, consumers=readers, is_output=False)
