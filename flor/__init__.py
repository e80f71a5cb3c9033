"""flor: hindsight logging for machine learning.

Every run of every version of a script in one table, with what was logged and, later, with what
was not.
"""

from flor import session as _session
from flor.api import (
    arg,
    checkpointing,
    checkpoints,
    commit,
    data,
    dataframe,
    load,
    log,
    loop,
    propagate,
    sql,
)

__version__ = "0.1.0"
__all__ = [
    "arg",
    "checkpointing",
    "checkpoints",
    "commit",
    "data",
    "dataframe",
    "load",
    "log",
    "loop",
    "propagate",
    "sql",
]

_session.install()
