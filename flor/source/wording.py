"""What a statement is to call things in an older version. Pure.

Statements that correspond vote: where one has a name that only the new version knows, and the other
one, in the same place, a name that only the old version knows, that is a vote for a rename. For
variables the function around the statement votes, for attributes of `self` the whole class.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from difflib import SequenceMatcher
from functools import cached_property

from flor.source.bindings import Bindings, bound_in, reads
from flor.source.match import FOREIGN, Matcher, definition
from flor.source.names import BUILTINS
from flor.source.placing import Located
from flor.source.renames import Renames, Role, roles
from flor.source.syntax import Branch, Source, Statement
from flor.source.tokens import Tokens
from flor.source.weighing import Place

SHARE = 0.6  # of the votes that the winner needs
WHOLE = 3.0  # a vote of statements that are the same but for such names
EQUAL = 1.5  # of a part of others that is, and of heads of functions
CHANGED = 0.5  # of a part that differs
ENOUGH = 1.5
ATTRIBUTE = re.compile(r"\b(?:self|cls)\s*\.\s*([^\W\d]\w*)")
COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)

Known = set[tuple[Role, str]]


class Wording:
    """The renames for one statement; and which names have no value at a place even so."""

    def __init__(
        self, new: Source, old: Source, probe: Statement, located: Located, coming: set[str]
    ) -> None:
        self.new, self.old, self.probe, self.located = new, old, probe, located
        self.bindings = Bindings(old)
        self.needed = (Bindings(new).gets(probe) if probe.is_compound else reads(probe)) - coming
        self.hiding = {n for n in probe.uses.reads if n in BUILTINS} & _bound_by(new)
        self.needed |= self.hiding - probe.uses.binds
        function = next((pair for pair in reversed(located.scopes)), None)
        self.local = bound_in(function[0].node) if function and not _is_class(function) else set()
        self.renames = Renames()
        others = self._others("attribute"), self._others("keyword")
        self.renames = Renames(self._names(), *others, self._own())

    def unbound(self, place: Place) -> list[str]:
        """The names that it reads and that have no value at a place, even renamed."""
        names = self.renames.names
        return sorted(n for n in self.needed if not self._is_bound(n, names.get(n, n), place))

    def lost(self) -> list[str]:
        """The attributes of self that it reads, that the new class itself sets, and that the older
        class has not, not even under another name, nor can inherit."""
        reads = {n[1:] for n in self.probe.uses.reads if n[0] == "."}
        lost = (reads & self._unknown()) - self.renames.own.keys()
        if not lost or self._class is None:
            return []
        ours, theirs = self._class
        if any(getattr(base, "id", "") != "object" for base in getattr(theirs.node, "bases", [])):
            return []
        bound = {n[1:] for n in ours.uses.binds if n[0] == "."} | set(_methods(ours))
        bound |= {n for s in ours.branches[0].statements for n in s.uses.binds}
        return sorted(lost & bound)

    def _is_bound(self, name: str, was: str, place: Place) -> bool:
        if was in self.hiding and was not in self.bindings.module:
            return False  # the built-in one is not what it means
        local = name in self.local
        return self.bindings.is_bound(was, place.branch, place.index, local=local)

    def _names(self) -> dict[str, str]:
        best = self.located.places[0]
        read_here = {n for n in self.probe.uses.reads if n in self.local}  # built-in ones as well
        lacking = {n for n in self.needed | read_here if not self._is_known(n, best)}
        own = {n for n in self.probe.uses.binds if n[0] != "." and not self._is_known(n, best)}
        if not lacking | own:
            return {}
        votes = self._votes
        found = {n: votes.winner("name", n) or self._from_outside(n) for n in lacking | own}
        return {n: was for n, was in found.items() if was is not None}

    def _from_outside(self, name: str) -> str | None:
        """The older name of what an enclosing function or the module binds."""
        if name in self.local:
            return None
        for ours, theirs in reversed(self.located.scopes[:-1]):
            if ours.kind != "ClassDef" and name in bound_in(ours.node):
                matcher = Matcher(ours.bag, theirs.bag)
                votes = Votes(matcher, ours.branches[0], theirs.branches[0], self.probe)
                votes.count(ours, theirs)
                return votes.winner("name", name)
        return self._of_module(name)

    @cached_property
    def _votes(self) -> Votes:
        """Of the function around the statement."""
        located = self.located
        votes = Votes(located.matcher, *_regions(located, self.new, self.old), self.probe)
        for pair in located.pairs:
            votes.count(*pair)
        for pair in located.scopes:
            votes.heads(*pair)
        return votes

    def _others(self, kind: Role) -> dict[str, str]:
        """Attributes of other objects, or keywords, that the older version has nowhere; where
        statements are the same but for them."""
        words = self.probe.tokens
        wanted = {words[i] for i, role in roles(words) if role == kind}
        wanted = {name for name in wanted if not self._occurs(name.lstrip("."))}
        found = {n: self._votes.winner(kind, n) for n in wanted}
        return {n.lstrip("."): was.lstrip(".") for n, was in found.items() if was is not None}

    def _occurs(self, name: str) -> bool:
        return re.search(rf"\b{re.escape(name)}\b", self.old.text) is not None

    def _is_known(self, name: str, place: Place) -> bool:
        """Whether the older version has it as well, so that it was not renamed."""
        if name in self.local:
            here = self.bindings.scope(place.branch)
            return any(name in scope.binds for scope in here.around() if scope.parent is not None)
        return self._is_bound(name, name, place)

    def _of_module(self, name: str) -> str | None:
        """The older name of a function, class or variable of the module."""
        for statement in self.new.module.statements:
            if statement.name == name:
                found = definition(statement, self.new.module, self.old.module)
                return found.name if found is not None else None
        if name not in _bound_by(self.new):
            return None
        return self._module_votes.winner("name", name)

    @cached_property
    def _module_votes(self) -> Votes:
        ours, theirs = self.new.module, self.old.module
        matcher = Matcher(self.new.bag, self.old.bag)
        votes = Votes(matcher, ours, theirs, self.probe)
        for i, j in matcher.align(ours.statements, theirs.statements).items():
            votes.count(ours.statements[i], theirs.statements[j])
        return votes

    @cached_property
    def _class(self) -> tuple[Statement, Statement] | None:
        return next((pair for pair in reversed(self.located.scopes) if _is_class(pair)), None)

    def _unknown(self) -> set[str]:
        """The attributes of self in the statement that do not occur in the older class."""
        names = self.probe.uses.reads | self.probe.uses.binds
        wanted = {name[1:] for name in names if name[0] == "."}
        if self._class is None or not wanted:
            return set()
        theirs = self._class[1]
        return wanted - set(ATTRIBUTE.findall(COMMENT.sub("", theirs.text))) - set(_methods(theirs))

    def _own(self) -> dict[str, str]:
        """Those of `self` that the older class does not have."""
        wanted, pair = self._unknown(), self._class
        if not wanted or pair is None:
            return {}
        ours, theirs = pair
        bags = Matcher(ours.bag, theirs.bag)
        votes = Votes(bags, ours.branches[0], theirs.branches[0], self.probe)
        methods = _methods(theirs)
        for name, method in _methods(ours).items():
            if name in methods:
                votes.count(method, methods[name])
            elif name in wanted:
                found = definition(method, ours.branches[0], theirs.branches[0])
                if found is not None and found.name:
                    votes.add("own", f".{name}", f".{found.name}", WHOLE)
        found_names = {n: votes.winner("own", f".{n}") for n in wanted}
        return {n: was[1:] for n, was in found_names.items() if was is not None}


def _bound_by(source: Source) -> set[str]:
    """The names of a module."""
    return bound_in(source.tree)


def _is_class(pair: tuple[Statement, Statement]) -> bool:
    return pair[0].kind == "ClassDef"


def _methods(owner: Statement) -> dict[str, Statement]:
    return {s.name: s for s in owner.branches[0].statements if s.is_definition and s.name}


def _regions(located: Located, new: Source, old: Source) -> tuple[Branch, Branch]:
    """Where variables of the statement are known: the outermost function around it, or all."""
    for ours, theirs in located.scopes:
        if ours.kind != "ClassDef":
            return ours.branches[0], theirs.branches[0]
    return new.module, old.module


class Votes:
    """Counts what corresponds to what, in pairs of statements of two regions."""

    def __init__(self, matcher: Matcher, new: Branch, old: Branch, probe: Statement) -> None:
        self.matcher = matcher
        self._new, self._old = _vocabulary(new), _vocabulary(old)
        self._for: defaultdict[tuple[Role, str], Counter[str]] = defaultdict(Counter)
        self._from: defaultdict[tuple[Role, str], Counter[str]] = defaultdict(Counter)
        self._heads: set[tuple[str, str]] = set()
        self._uses = new.bag - probe.bag
        self._seen: set[tuple[Statement, Statement]] = set()

    def winner(self, role: Role, name: str) -> str | None:
        """What the old version calls it, if the votes agree."""
        votes = self._for.get((role, name))
        if not votes:
            return None
        best, count = max(votes.items(), key=lambda item: item[1])
        back = self._from[role, best]
        enough = ENOUGH if role in ("name", "own") else WHOLE
        if count < enough or count < SHARE * sum(votes.values()):
            return None
        if max(back.values()) > back[name]:
            return None
        only_place = (name, best) in self._heads and count <= EQUAL  # among the parameters
        used = (role, best) in self._old, self._uses[name] > 0
        return None if only_place and used[0] != used[1] else best

    def add(self, role: Role, name: str, was: str, weight: float) -> None:
        self._for[role, name][was] += weight  # type: ignore[assignment]
        self._from[role, was][name] += weight  # type: ignore[assignment]

    def heads(self, new: Statement, old: Statement) -> None:
        """What two functions call the parameters in the same places."""
        ours, theirs = _parameters(new.node), _parameters(old.node)
        for n, was in _aligned(ours, theirs):
            if ("name", n) not in self._old and ("name", was) not in self._new:
                if not self._for["name", n][was]:
                    self._heads.add((n, was))
                self.add("name", n, was, EQUAL)

    def count(self, new: Statement, old: Statement) -> None:
        if (new, old) in self._seen or new.tokens == old.tokens:
            return
        self._seen.add((new, old))
        self._compare(new.head, old.head, WHOLE, is_def=new.is_definition)
        if not (new.is_compound and old.is_compound):
            return
        for branch in new.branches:
            partner = self.matcher.branch(branch, old)
            if partner is not None:
                self._compare(branch.head, partner.head, WHOLE, is_def=False)
                ours, theirs = branch.statements, partner.statements
                for i, j in self.matcher.align(ours, theirs).items():
                    self.count(ours[i], theirs[j])

    def _compare(self, new: Tokens, old: Tokens, whole: float, *, is_def: bool) -> None:
        ours = {i: role for i, role in roles(new, is_def=is_def) if (role, new[i]) not in self._old}
        theirs = {
            j: role for j, role in roles(old, is_def=is_def) if (role, old[j]) not in self._new
        }
        if not ours or not theirs:
            return
        plain_new = [FOREIGN + ours[i] if i in ours else token for i, token in enumerate(new)]
        plain_old = [FOREIGN + theirs[j] if j in theirs else token for j, token in enumerate(old)]
        matcher = SequenceMatcher(None, plain_new, plain_old, autojunk=False)
        same = plain_new == plain_old
        for tag, i0, i1, j0, j1 in matcher.get_opcodes():
            if i1 - i0 != j1 - j0 or tag not in ("equal", "replace"):
                continue
            weight = whole if same else EQUAL if tag == "equal" else CHANGED
            for i, j in zip(range(i0, i1), range(j0, j1), strict=True):
                if i in ours and ours[i] == theirs.get(j):
                    self.add(ours[i], new[i], old[j], weight)


def _parameters(node: ast.AST) -> list[tuple[str, str]]:
    """The parameters of a function, and what tells of each: annotation and default."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    args = node.args
    plain = [*args.posonlyargs, *args.args]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults))
    pairs = [
        *zip(plain, [*missing, *args.defaults], strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]
    found = [(arg.arg, _kind(arg.annotation) + _kind(value)) for arg, value in pairs]
    return found + [(arg.arg, "*") for arg in (args.vararg, args.kwarg) if arg is not None]


def _kind(node: ast.expr | None) -> str:
    return ast.dump(node) if node is not None else ""


def _aligned(ours: list[tuple[str, str]], theirs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Parameters in the same places between those that both have; else those told by the rest."""
    names = SequenceMatcher(None, [n for n, _ in ours], [n for n, _ in theirs], autojunk=False)
    found: list[tuple[str, str]] = []
    for tag, i0, i1, j0, j1 in names.get_opcodes():
        if tag != "replace":
            continue
        left, right = ours[i0:i1], theirs[j0:j1]
        if len(left) == len(right):
            found += [(a[0], b[0]) for a, b in zip(left, right, strict=True)]
            continue
        for name, default in left:
            same = [other for other, value in right if value == default]
            if len(same) == 1 and default and [d for _, d in left].count(default) == 1:
                found.append((name, same[0]))
    return found


def _vocabulary(region: Branch) -> Known:
    """What a region calls its things, those in the head of its function left out."""
    found: Known = set()
    for outer in region.statements:
        for statement in outer.walk():
            heads = [statement.head]
            if statement.is_compound:
                heads += [branch.head for branch in statement.branches]
            for head in heads:
                is_def = statement.is_definition
                found.update((role, head[i]) for i, role in roles(head, is_def=is_def))
    return found
