"""The format of each projection: what a checkpoint declares, or what an engine serves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from metpipe.circuit.errors import BadCircuit

__all__ = ["BF16", "Precision", "PrecisionRow"]


GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class PrecisionRow:
    """Modules that match have this weight format and take activations in that one.

    `match` is a glob, or a regular expression behind `re:`.
    """

    match: str
    weight: str
    activation: str = "bf16"

    def covers(self, module: str) -> bool:
        """Whether a module matches."""
        if self.match.startswith("re:"):
            return re.match(self.match.removeprefix("re:"), module) is not None
        if self.match == module:
            return True
        return GLOB.search(self.match) is not None and fnmatchcase(module, self.match)


@dataclass(frozen=True, slots=True)
class Precision:
    """An ordered table; the first row that matches a module decides, the last one matches all."""

    source: str
    rows: tuple[PrecisionRow, ...]

    def of(self, module: str) -> PrecisionRow:
        """The row that decides for a module; the first expert stands for all (`experts.*.up`)."""
        named = module.replace(".*.", ".0.")
        for row in self.rows:
            if row.covers(named):
                return row
        raise BadCircuit(
            f"{self.source}: no row covers the module {module!r}; end with match = '*'"
        )

    def weight_format(self, modules: tuple[str, ...], node: str) -> str:
        """The one weight format of a node's modules.

        Raises:
            BadCircuit: they differ; a node's matrix has one format.
        """
        formats = {module: self.of(module).weight for module in modules}
        if len(set(formats.values())) > 1:
            listed = ", ".join(f"{module} {fmt}" for module, fmt in formats.items())
            raise BadCircuit(
                f"{self.source}: the modules of {node} have different formats ({listed}), and one "
                "matrix has one"
            )
        return next(iter(formats.values()))


BF16 = Precision("served bf16", (PrecisionRow("*", "bf16"),))
"""Every projection in bf16, the only precision that is executed today."""
