"""Changes, one at a time: in the function where one happens, for its callers, and under every name
for the same object. Pure.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from flor.source.names import Scope, words

LONGEST = 6  # names in a path; `node = node.next` would make endless ones

# Methods that change lists, dicts, sets and queues; besides torch's, which end with one `_`.
MUTATORS = words(
    """add append appendleft clear difference_update discard extend extendleft insert
    intersection_update pop popitem popleft remove reverse rotate setdefault sort
    symmetric_difference_update update"""
)


class How(str, enum.Enum):
    """In which way something changes."""

    ASSIGNED = "assigned"  # the name or attribute is bound or deleted
    MUTATED = "mutated"  # the object may be changed in place
    CALLED = "called"  # it is called: what it holds on to may be changed in place
    PASSED = "passed"  # it is given to a call that may change it; a guess


SUREST = (How.ASSIGNED, How.MUTATED, How.CALLED, How.PASSED)


@dataclass(frozen=True)
class Change:
    """One path that the loop changes. `rules` are those of Table 2, or those that they extend."""

    path: str
    how: How  # the surest that was seen
    rules: tuple[int, ...]
    scope: str  # of the path's first name: local, global or nonlocal
    first_line: int


class Source(NamedTuple):
    """A variable or attribute that a value may be; or `inside` which it may be."""

    owner: Scope
    path: str
    inside: bool = False


class Effect(NamedTuple):
    """A change at one place; `owner` is the scope whose variable the path begins with."""

    owner: Scope
    path: str
    how: How
    rule: int
    line: int
    sure: bool = True  # false: only some method was called


class Call(NamedTuple):
    """A function of this file that is called, or may be at any time. Rule None: its own rules."""

    function: Scope
    line: int
    rule: int | None = None
    arguments: tuple[tuple[str, tuple[Source, ...]], ...] = ()


Links: TypeAlias = defaultdict[tuple[Scope, str], list[Source]]


def merged(effects: Iterable[Effect], scope: Scope) -> tuple[Change, ...]:
    """One change for each path that can be named in a scope."""
    around = list(scope.around())
    found: defaultdict[tuple[str, str], list[Effect]] = defaultdict(list)
    for effect in effects:
        if effect.owner is scope:
            found[effect.path, "local"].append(effect)
        elif effect.owner in around:
            outer = "global" if effect.owner is around[-1] else "nonlocal"
            found[effect.path, outer].append(effect)
    return tuple(
        Change(
            path,
            min((effect.how for effect in group), key=SUREST.index),
            tuple(sorted({effect.rule for effect in group})),
            whose,
            min(effect.line for effect in group),
        )
        for (path, whose), group in sorted(found.items())
    )


def _contained(how: How) -> How:
    """How a container changes, of which something in it changes."""
    return how if how in (How.PASSED, How.CALLED) else How.MUTATED


def at_call(effect: Effect, call: Call) -> Iterator[Effect]:
    """A function's effect as its caller sees it."""
    rule = effect.rule if call.rule is None else call.rule
    if effect.owner is not call.function:
        yield effect._replace(rule=rule, line=call.line)
        return
    root, dot, rest = effect.path.partition(".")
    if effect.how is How.ASSIGNED and not rest:
        return  # the parameter is only bound to something else
    for source in dict(call.arguments).get(root, ()):
        here = effect._replace(owner=source.owner, rule=rule, line=call.line)
        if source.inside:
            yield here._replace(path=source.path, how=_contained(effect.how))
        else:
            yield here._replace(path=source.path + dot + rest)


def through_links(effects: list[Effect], links: Links) -> list[Effect]:
    """The effects, and those that they have under other names for the same objects."""
    found = dict.fromkeys(effects)
    waiting = list(found)
    seen = {(effect.owner, effect.path, effect.how, effect.sure) for effect in waiting}
    while waiting:
        effect = waiting.pop()
        names = effect.path.split(".")
        for length in range(1, len(names) + 1):
            rest = names[length:]
            if effect.how is How.ASSIGNED and not rest:
                continue  # the name is bound to another object, the old one is not changed
            for source in links.get((effect.owner, ".".join(names[:length])), ()):
                if source.inside and not effect.sure and effect.how is not How.CALLED:
                    continue  # as for `batch.to(device)`: it would change the data set
                path, how = ".".join([source.path, *rest]), effect.how
                owner, _, method = path.rpartition(".")
                if source.inside:
                    path, how = source.path, _contained(how)
                elif how is How.CALLED and owner and method in MUTATORS:  # add = seen.add
                    path, how = owner, How.MUTATED
                reached = effect._replace(owner=source.owner, path=path, how=how)
                key = (reached.owner, path, how, reached.sure)
                if key not in seen and path.count(".") < LONGEST:
                    seen.add(key)
                    found[reached] = None
                    waiting.append(reached)
    return list(found)
