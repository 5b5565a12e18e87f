"""What pydantic found wrong with a value, in metpipe's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["sentence"]


def sentence(item: ErrorDetails) -> str:
    """What the value must be, and what it is."""
    kind, bounds = item["type"], item.get("ctx", {})
    got = "" if isinstance(item["input"], dict) else f", got {item['input']!r}"
    match kind:
        case "extra_forbidden":
            return f"there is no such key{got}"
        case "missing":
            return "is missing"
        case "greater_than_equal":
            return f"must be at least {_plain(bounds['ge'])}{got}"
        case "greater_than":
            return f"must be above {_plain(bounds['gt'])}{got}"
        case "less_than_equal":
            return f"must be at most {_plain(bounds['le'])}{got}"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"must be a whole number{got}"
        case "finite_number":
            return f"must be a finite number{got}"
        case "float_type" | "float_parsing":
            return f"must be a number{got}"
        case "bool_type" | "bool_parsing":
            return f"must be true or false{got}"
        case "string_type":
            return f"must be text; quote a name that looks like a number{got}"
        case "string_too_short":
            return f"must not be empty{got}"
        case "literal_error" if " or " not in bounds["expected"]:
            return f"must be {bounds['expected']}{got}"
        case "literal_error":
            return f"must be one of {bounds['expected']}{got}"
        case "tuple_type" | "list_type":
            return f"must be a list{got}"
        case "too_short":
            return f"must hold at least {bounds['min_length']}{got}"
        case "too_long":
            return f"must hold at most {bounds['max_length']}{got}"
        case "model_type" | "dict_type":
            return f"must be a table{got}"
        case "value_error":
            return f"{bounds['error']}{got}"
        case _:
            return f"{item['msg']}{got}"


def _plain(bound: float) -> str:
    """A bound without a needless `.0`, and a whole number in full."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
