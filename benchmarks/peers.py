"""The peers, each from PyPI in a virtual environment of its own under `.bench/`.

python benchmarks/peers.py        installs them all (about 1 GB, because of torch)
"""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / ".bench"


@dataclass(frozen=True)
class Peer:
    """`steps` are the requirements of one `pip install` each, in order."""

    name: str
    folder: str
    module: str
    steps: tuple[tuple[str, ...], ...]


TRACKERS = (
    # It imports torch; without a pin pip would take the newest with gigabytes of CUDA.
    Peer("FlorDB 4.0.1", "flordb-4.0.1", "flordb", (("torch==2.13.0",), ("flordb==4.0.1",))),
    Peer("FlorDB 3.4.10", "flordb-3.4.10", "flordb", (("flordb==3.4.10", "pandas<3"),)),
)
MLFLOW = Peer(
    "MLflow 3.17.2",
    "mlflow-3.17.2",
    "mlflow",
    (("mlflow-skinny==3.17.2", "sqlalchemy", "alembic", "pandas"),),
)
# Its propagation alone, which needs neither torch nor a project.
HLAST = Peer(
    "FlorDB 4.0.1",
    "flordb-4.0.1-hlast",
    "hlast",
    (("--no-deps", "flordb==4.0.1"), ("apted", "bidict==0.21.3")),
)
DIFF_MATCH_PATCH = Peer(
    "diff-match-patch",
    "diff-match-patch",
    "diff_match_patch",
    (("diff-match-patch==20241021",),),
)


def install(peer: Peer) -> Path:
    """The interpreter of `peer`'s environment, which is made on the first call."""
    root = FOLDER / peer.folder
    python = root / "bin" / "python"
    stamp = root / ".installed"
    wanted = repr(peer.steps)
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"installing {peer.name} into {root}", file=sys.stderr, flush=True)
    venv.create(root, with_pip=True, clear=True)
    for step in peer.steps:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *step], check=True)
    # An import that compiles would be measured ten times slower than it is.
    subprocess.run(
        [python, "-m", "compileall", "-q", root / "lib"], check=False, stdout=subprocess.DEVNULL
    )
    stamp.write_text(wanted)
    return python


if __name__ == "__main__":
    for every in (*TRACKERS, MLFLOW, HLAST, DIFF_MATCH_PATCH):
        print(every.name, install(every))
