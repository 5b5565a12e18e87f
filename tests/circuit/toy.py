"""Small circuits and rules for tests, built node by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import settings

from metpipe.circuit import (
    BlockInstance,
    Circuit,
    Edge,
    Element,
    Kernel,
    Node,
    Numerics,
    Plan,
    Rule,
    RuleSet,
    Select,
    Situation,
    StateDecl,
    fuse,
)

patiently = settings(deadline=None, max_examples=60)
"""For properties: a busy machine is no failure."""

REFERENCE = Numerics("reference")
IDENTICAL = Numerics("bit_identical", microtest="some test")
DIFFERS = Numerics("differs", lever="fast")


class Toy:
    """Collects nodes; a block is what was added since the last `block` call."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: dict[str, Edge] = {}
        self.states: dict[str, StateDecl] = {}
        self.starts = {"b0": 0}
        self.prefix, self.section, self.layer = "b0", "main", None

    def block(self, prefix: str, section: str = "main", layer: int | None = None) -> Toy:
        self.prefix, self.section, self.layer = prefix, section, layer
        self.starts[prefix] = len(self.nodes)
        return self

    def state(self, state_id: str, kind: str = "paged_kv") -> Toy:
        verify = "h_steps" if kind == "recurrent" else None
        self.states[state_id] = StateDecl(
            state_id, state_id, kind, "model", "bf16", 8, (8,), None, "main", verify
        )
        return self

    def add(
        self,
        local: str,
        op: str,
        reads: str = "",
        writes: str = "",
        *,
        role: str | None = None,
        rows: str = "n",
        dim: int = 8,
        formats: str = "bf16",
        weight: str | None = None,
        has_bias: bool = False,
        params: Mapping[str, str] | None = None,
        state: Mapping[str, str] | None = None,
    ) -> Toy:
        index = len(self.nodes)
        for edge in dict.fromkeys(reads.split()):
            held = self.edges[edge]
            self.edges[edge] = replace(held, consumers=(*held.consumers, index))
        for edge in writes.split():
            self.edges[edge] = Edge(edge, formats, rows, str(dim), dim, index, (), False, None)
        binding = (f"m.{local}",) if weight else ()
        self.nodes.append(
            Node(
                index=index,
                id=f"{self.prefix}.{local}",
                local=local,
                op=op,
                role=role,
                inputs=tuple(reads.split()),
                outputs=tuple(writes.split()),
                weight_format=weight,
                binding=binding,
                has_bias=has_bias,
                params=dict(params or {}),
                layer=self.layer,
                layer_kind=None if self.layer is None else "full_attention",
                block=self.prefix,
                section=self.section,
                state=dict(state or {}),
                binding_rows=(dim * len(writes.split()),) if weight else (),
            )
        )
        return self

    def output(self, edge: str, buffer: str | None = None) -> Toy:
        self.edges[edge] = replace(self.edges[edge], is_output=True, buffer=buffer)
        return self

    def circuit(self) -> Circuit:
        prefixes = [name for name, _ in sorted(self.starts.items(), key=lambda item: item[1])]
        ends = [*(self.starts[name] for name in prefixes[1:]), len(self.nodes)]
        blocks = tuple(
            BlockInstance(prefix, prefix, None, None, self._section(start), start, end, None, None)
            for prefix, start, end in zip(
                prefixes, (self.starts[name] for name in prefixes), ends, strict=True
            )
            if start < end
        )
        kinds = tuple("full_attention" for node in self.nodes if node.layer is not None)[:1]
        dims = {"hidden": 8, "vocab": 32, "head_dim": 4}
        return Circuit(
            "toy", tuple(self.nodes), dict(self.edges), blocks, kinds, dims, {}, dict(self.states)
        )

    def _section(self, first: int) -> str:
        return self.nodes[first].section if first < len(self.nodes) else "main"


def rule(
    rule_id: str,
    pattern: Iterable[str | Element],
    *kernels: str,
    numerics: Numerics = REFERENCE,
    priority: int = 10,
    rows: tuple[int, int] = (1, 4096),
    modes: Iterable[str] = ("decode", "multi_seq", "prefill", "verify"),
    **fields: object,
) -> Rule:
    """A rule; elements may be op names, kernels are `module.func` (default: one of its id)."""
    made = tuple(Element(item) if isinstance(item, str) else item for item in pattern)
    return Rule(
        id=rule_id,
        pattern=made,
        kernels=tuple(Kernel(*name.split(".")) for name in kernels or (f"k.{rule_id}",)),
        rows=rows,
        modes=frozenset(modes),
        numerics=numerics,
        priority=priority,
        cite="here",
        source="toy.toml",
        **fields,  # type: ignore[arg-type]
    )


def rule_set(*rules: Rule) -> RuleSet:
    return RuleSet("toy.toml", {entry.id: entry for entry in rules})


def every_kernel(rules: RuleSet) -> frozenset[str]:
    return frozenset(name for entry in rules.rules.values() for name in entry.kernel_names)


def plan(circuit: Circuit, *rules: Rule, rows: int = 1, **situation: object) -> Plan:
    """Fuse; every kernel of the rules is there unless `kernels` says otherwise."""
    found = rule_set(*rules)
    made = {"mode": "decode", "kernels": every_kernel(found), "select": Select.all()}
    return fuse(circuit, found, Situation(rows=rows, **{**made, **situation}))  # type: ignore[arg-type]


def groups(made: Plan) -> list[tuple[str, list[str]]]:
    """(rule, local node ids) of each group, in execution order."""
    return [
        (group.rule.id, [made.circuit.nodes[index].local for index in group.nodes])
        for group in made.groups
    ]


SINGLES = (
    rule("embed", ["embed"]),
    rule("norm", ["rms_norm"]),
    rule("linear", ["linear"]),
    rule("act", ["silu_mul"]),
    rule("add", ["residual_add"]),
)
"""A reference rule for each op of the chain."""

NORM_LINEAR = rule("norm_linear", ["rms_norm", "linear"], numerics=IDENTICAL, priority=100)
LINEAR_ACT = rule("linear_act", ["linear", "silu_mul"], numerics=IDENTICAL, priority=100)


def chain() -> Circuit:
    """Embed -> norm -> linear -> act -> add(x, act)."""
    return (
        Toy()
        .add("embed", "embed", "", "x", weight="bf16")
        .add("norm", "rms_norm", "x", "xn", weight="bf16")
        .add("up", "linear", "xn", "u", role="gate_up", weight="bf16", dim=16)
        .add("act", "silu_mul", "u", "a")
        .add("add", "residual_add", "x a", "y")
        .output("y")
        .circuit()
    )
