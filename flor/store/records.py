"""Arrays of a journal, checked and cut by site; in bulk, for there may be millions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol

from flor.store import cells, fields
from flor.store.cells import Tagged

Columns = tuple[Sequence[Any], ...]


class Numbers(Protocol):
    """The sites and loops that a journal has defined so far."""

    @property
    def sites(self) -> Mapping[int, int]: ...
    @property
    def loops(self) -> Mapping[int, int]: ...


def are_sound(records: list[list[Any]], known: Numbers) -> bool:
    """Whether all records are plain and make sense; much faster than looking at each."""
    if set(map(len, records)) != {4}:
        return False
    sites, loops, iterations, _ = zip(*records, strict=True)
    if set(map(type, chain(sites, loops, iterations))) != {int}:
        return False
    defined = known.sites.keys() >= set(sites) and known.loops.keys() >= set(loops)
    return defined and min(iterations) >= 0 and max(iterations) < fields.MAX_ITERATION


def sound(
    numbered: Iterable[tuple[int, list[Any]]], known: Numbers
) -> Iterator[tuple[int, int, int, int, Any]]:
    """The records that make sense."""
    for seq, record in numbered:
        if len(record) not in (4, 5) or set(map(type, record[:3])) != {int}:
            continue
        site, loop, iteration, value = record[:4]
        defined = site in known.sites and loop in known.loops
        if not defined or not 0 <= iteration < fields.MAX_ITERATION:
            continue
        if len(record) == 5:
            if not cells.is_tag(record[4], value):
                continue
            value = Tagged(value, record[4])
        yield seq, site, loop, iteration, value


def by_site(sites: Sequence[int], columns: Columns) -> Iterator[tuple[int, Columns]]:
    """The columns, cut by site. Rows of one site come in order, as the table is clustered."""
    places: dict[int, list[int]] = {}
    for place, site in enumerate(sites):
        if site in places:
            places[site].append(place)
        else:
            places[site] = [place]
    if len(places) == 1:
        yield sites[0], columns
        return
    for site, where in places.items():
        if len(where) == 1:
            yield site, tuple((column[where[0]],) for column in columns)
        else:
            pick = itemgetter(*where)
            yield site, tuple(pick(column) for column in columns)
