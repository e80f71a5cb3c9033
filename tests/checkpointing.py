"""Checkpoints that are taken and read back as in a training: by way of real files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flor.checkpoint import modules, rng
from flor.checkpoint.capturable import identity
from flor.checkpoint.encoding import Encoder
from flor.checkpoint.manifest import Frame, Manifest
from flor.checkpoint.staging import Staging
from flor.checkpoint.state import State
from flor.checkpoint.writing import Objects, Written, write
from flor.model import Step
from flor.objects import ObjectStore


def take(
    folder: Path,
    objects: Mapping[str, Any] | None = None,
    *,
    variables: Mapping[str, Any] | None = None,
    gradients: bool = False,
    trust: bool = False,
) -> State:
    """What is read of a checkpoint of declared objects, and of a frame's variables."""
    staging, written = Staging(), list[Written]()
    staging.begin()
    declared = dict(objects or {})
    encoder = Encoder(staging, {identity(value): name for name, value in declared.items()})
    encoder.with_gradients = gradients
    random = {name: encoder.encode(state, f"rng {name}") for name, state in rng.states().items()}
    order = sorted(declared.items(), key=lambda item: modules.rank(item[1]))
    nodes = {name: encoder.root(name, value) for name, value in order}
    values = {name: encoder.encode(value, name) for name, value in (variables or {}).items()}
    manifest = Manifest(
        run_id="20261118-190312-aaaaaa",
        number=1,
        place=(Step("epoch", 3),),
        boundary="step",
        final=False,
        objects=nodes,
        frames=(Frame("train.py", "<module>", 7, "epoch", values),),
        rng=random,
        missing=tuple(encoder.missing),
    )
    store = ObjectStore(folder)
    for _ in write(manifest, staging.end(), Objects(store), lambda w, _: written.append(w)):
        pass
    staging.forget()
    return State(Manifest.from_bytes(store.get(written[0].digest)), store, trust=trust)


def store_of(state: State) -> ObjectStore:
    """Where a state's bytes are."""
    return state._leaves._store


def reread(state: State, *, trust: bool = False) -> State:
    """The same checkpoint, as another process reads it."""
    return State(state.manifest, store_of(state), trust=trust)


def changed(state: State, change: Callable[[Any], object], *, trust: bool = False) -> State:
    """The checkpoint with another document, which was changed by hand."""
    data = json.loads(state.manifest.to_bytes())
    change(data)
    content = json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return State(Manifest.from_bytes(content), store_of(state), trust=trust)


def holding(state: State, **values: Any) -> State:
    """The checkpoint with these nodes as its objects, and nothing else."""
    return State(
        replace(state.manifest, objects=values, frames=(), rng={}), store_of(state), trust=False
    )
