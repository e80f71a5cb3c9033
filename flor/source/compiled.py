"""Whether code was compiled from a source, so that what is read there is what runs. Pure."""

from __future__ import annotations

import types


def code_matches(tree_source: str, filename: str, code: types.CodeType) -> bool:
    """Whether `code` was compiled from this source, so that its lines are the source's lines.

    The name of the file does not matter, nor do the values of default arguments. Compiling may
    repeat the source's syntax warnings.
    """
    try:
        waiting = [compile(tree_source, filename, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError):
        return False
    if code.co_name == "<module>":
        return _same(waiting[0], code)
    while waiting:
        ours = waiting.pop()
        if ours.co_firstlineno == code.co_firstlineno and _same(ours, code):
            return True
        waiting += [item for item in ours.co_consts if isinstance(item, types.CodeType)]
    return False


def _same(one: object, other: object) -> bool:
    """Equality of code objects and of constants; 1, 1.0 and True differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, types.CodeType) and isinstance(other, types.CodeType):
        fields = ("co_name", "co_firstlineno", "co_code", "co_names", "co_varnames", "co_consts")
        return list(one.co_lines()) == list(other.co_lines()) and all(
            _same(getattr(one, field), getattr(other, field)) for field in fields
        )
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, frozenset) and isinstance(other, frozenset):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)  # nan, -0.0
    return one == other
