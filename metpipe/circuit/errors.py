"""What a circuit, a config or a rule file can get wrong. All are `ConfigError`: exit status 2."""

from __future__ import annotations

from metpipe.errors import ConfigError

__all__ = [
    "BadArgument",
    "BadCircuit",
    "Cycle",
    "EmptySection",
    "FormatConflict",
    "MissingKernel",
    "PolicyMissing",
    "RefusedConfig",
    "RuleFileError",
    "Uncovered",
    "UnknownRule",
    "ZeroRows",
]


class BadCircuit(ConfigError):
    """A circuit description, or the circuit made from it, is not legal."""


class RefusedConfig(ConfigError):
    """A config.json has an unclassified key, lacks one, or asks for what no circuit expresses."""


class RuleFileError(ConfigError):
    """A FUSIONS.toml does not follow its schema."""


class UnknownRule(ConfigError):
    """A selection names a rule that the rule set does not have."""


class MissingKernel(ConfigError):
    """A rule that was asked for by name, or a whole rule set, names a kernel that is not there."""


class PolicyMissing(ConfigError):
    """A rule reads a setting that the situation does not state."""


class ZeroRows(ConfigError):
    """A plan was asked for less than one row."""


class EmptySection(ConfigError):
    """The circuit has no node in the section that the mode runs."""


class Uncovered(ConfigError):
    """No rule takes a node; `ops` are those of all nodes that none takes."""

    def __init__(self, message: str, ops: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.ops = ops


class BadArgument(ConfigError):
    """A rule gives a kernel what the nodes it took do not have, or forgets what it must write."""


class Cycle(ConfigError):
    """The groups wait for each other."""


class FormatConflict(ConfigError):
    """A group reads an edge in another format than the one it is stored in."""
