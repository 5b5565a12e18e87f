"""Reads circuit TOML, schema 1: an architecture file and the block libraries it includes."""

from __future__ import annotations

from collections.abc import Mapping

from metpipe.circuit.description import (
    BlockText,
    Description,
    LayoutText,
    NodeText,
    OutText,
    PrefixText,
    StateText,
    TensorText,
)
from metpipe.circuit.dims import Expr, parse_expr
from metpipe.circuit.errors import BadCircuit
from metpipe.circuit.strict import Table, read_toml
from metpipe.circuit.vocabulary import LAYER_KINDS

__all__ = ["included_libraries", "parse_circuit"]


def included_libraries(text: str, source: str) -> tuple[str, ...]:
    """The block libraries that an architecture file includes, by name."""
    return read_toml(text, source, BadCircuit).texts("include", ())


def parse_circuit(text: str, source: str, libraries: Mapping[str, str]) -> Description:
    """Read an architecture and its libraries (name -> TOML text).

    Raises:
        BadCircuit: a key is unknown, missing or of another type; a block is defined twice or used
            without being defined.
    """
    with read_toml(text, source, BadCircuit) as root:
        root.schema(1)
        blocks = _library_blocks(root, libraries)
        _merge(blocks, root)
        description = Description(
            arch=root.text("arch"),
            source=source,
            description=root.text("description"),
            layer_module=root.text("layer_module"),
            dims=root.texts("dims"),
            prologue=root.texts("prologue", ()),
            epilogue=root.texts("epilogue", ()),
            layout=_layout(root),
            blocks=blocks,
            draft=root.texts("draft", ()),
            draft_module=root.optional_text("draft_module"),
            draft_when=root.optional_text("draft_when"),
            draft_variant=_lists(root.table("draft_variant")),
            module_root=_module_root(root),
            derived={
                name: parse_expr(text, f"{source}, derived {name}")
                for name, text in root.text_map("derived").items()
            },
            outside=root.texts("outside", ()),
        )
    _check_used(description, root)
    return description


def _module_root(root: Table) -> dict[str, str]:
    """One module, or a module per switch."""
    value = root.value("module_root", {})
    return {"": value} if isinstance(value, str) else root.text_map("module_root")


def _check_used(description: Description, root: Table) -> None:
    """A block of the architecture's own file that stands nowhere is a mistake."""
    used = description.blocks_used()
    for name in root.table("block").raw:
        if name not in used:
            raise root.fail(f"the block {name} is used nowhere")


def _library_blocks(root: Table, libraries: Mapping[str, str]) -> dict[str, BlockText]:
    blocks: dict[str, BlockText] = {}
    for name in root.texts("include", ()):
        if name not in libraries:
            raise root.fail(f"it includes {name!r}, and there is no blocks/{name}.toml")
        with read_toml(libraries[name], f"blocks/{name}.toml", BadCircuit) as library:
            library.schema(1)
            library.text("description")
            _merge(blocks, library)
    return blocks


def _merge(blocks: dict[str, BlockText], table: Table) -> None:
    for name, block in table.subtables("block").items():
        if name in blocks:
            raise block.fail(f"the block is defined in {blocks[name].where} already")
        blocks[name] = _block(name, block)


def _block(name: str, table: Table) -> BlockText:
    with table:
        return BlockText(
            name=name,
            where=table.where,
            stream_in=table.optional_text("stream_in"),
            stream_out=table.optional_text("stream_out"),
            outputs=_outputs(table),
            nodes=tuple(_node(node) for node in table.tables("node")),
            states=tuple(_state(state) for state in table.tables("state")),
        )


def _outputs(table: Table) -> dict[str, str | None]:
    value = table.value("outputs", [])
    if not isinstance(value, list):
        raise table.fail("outputs must be a list of edges, bare or {edge, buffer}")
    outputs: dict[str, str | None] = {}
    for item in value:
        if isinstance(item, str):
            outputs[item] = None
        elif isinstance(item, dict):
            with Table(item, f"{table.where}, outputs", BadCircuit) as entry:
                outputs[entry.text("edge")] = entry.text("buffer")
        else:
            raise table.fail(f"outputs holds {item!r}; write an edge name or {{edge, buffer}}")
    return outputs


def _node(table: Table) -> NodeText:
    with table:
        return NodeText(
            id=table.text("id"),
            op=table.text("op"),
            where=table.where,
            role=table.optional_text("role"),
            format=table.optional_text("format"),
            inputs=table.texts("in"),
            outputs=tuple(_out(out) for out in table.tables("out")),
            binding=table.texts("binding", ()),
            binding_when=_lists(table.table("binding_when")),
            binding_rows=_exprs(table.texts("binding_rows", ()), table.where),
            bias=_bias(table),
            params=table.text_map("params"),
            params_when=_params_when(table),
            when=table.optional_text("when"),
            state=table.text_map("state"),
            unquantized=table.boolean("unquantized", False),
            tensors=tuple(_tensor(tensor) for tensor in table.tables("tensor")),
            stacked=table.optional_text("stacked"),
            is_stacked_transposed=table.boolean("stacked_transposed", False),
            is_bare=table.boolean("bare", False),
            matrix=_matrix(table),
        )


def _matrix(table: Table) -> tuple[Expr, Expr] | None:
    text = table.optional_text("matrix")
    if text is None:
        return None
    parts = _exprs(tuple(text.split(" x ")), table.where)
    if len(parts) != 2:
        raise table.fail(f"matrix = {text!r} must be written `out x k`")
    return parts[0], parts[1]


def _out(table: Table) -> OutText:
    with table:
        rows, dim = _shape(table)
        return OutText(table.text("edge"), table.text("format"), rows, dim)


def _shape(table: Table) -> tuple[Expr, Expr]:
    parts = table.text("shape").split(" x ")
    if len(parts) != 2:
        raise table.fail(f"shape = {table.text('shape')!r} must be written `rows x dim`")
    rows, dim = _exprs(tuple(parts), table.where)
    if not rows.names & {"n", "s"}:
        raise table.fail(f"the rows {rows.text!r} mention neither n (tokens) nor s (sequences)")
    return rows, dim


def _bias(table: Table) -> str | None:
    value = table.value("bias", False)
    if isinstance(value, bool):
        return "always" if value else None
    return table.text("bias")


def _params_when(table: Table) -> dict[str, dict[str, str]]:
    inner = table.table("params_when")
    return {switch: inner.text_map(switch) for switch in inner.raw}


def _tensor(table: Table) -> TensorText:
    with table:
        shape = _exprs(tuple(table.text("shape").split(" x ")), table.where)
        return TensorText(table.text("id"), table.text("tensor"), shape)


def _state(table: Table) -> StateText:
    with table:
        return StateText(
            id=table.text("id"),
            kind=table.text("kind"),
            lifetime=table.text("lifetime"),
            format=table.text("format"),
            shape=_exprs(tuple(table.text("shape").split(" x ")), table.where),
            verify=table.optional_text("verify"),
            copies=table.optional_text("of"),
        )


def _layout(root: Table) -> LayoutText:
    with root.table("layout") as table:
        kind = table.choice("kind", ("interval", "list"))
        period = table.integer("period") if kind == "interval" else None
        return LayoutText(
            kind=kind,
            period=period,
            blocks=_kinds(table.table("blocks")),
            when={switch: _kinds(kinds) for switch, kinds in table.subtables("when").items()},
            prefix=_prefix(table) if table.has("prefix") else None,
        )


def _prefix(layout: Table) -> PrefixText:
    with layout.table("prefix") as table:
        return PrefixText(table.text("count"), _kinds(table.table("blocks")))


def _lists(table: Table) -> dict[str, tuple[str, ...]]:
    return {key: table.texts(key) for key in table.raw}


def _kinds(table: Table) -> dict[str, tuple[str, ...]]:
    for kind in table.raw:
        if kind not in LAYER_KINDS:
            raise table.fail(f"no layer kind {kind!r}; there are {', '.join(sorted(LAYER_KINDS))}")
    return _lists(table)


def _exprs(texts: tuple[str, ...], where: str) -> tuple[Expr, ...]:
    return tuple(parse_expr(text, where) for text in texts)
