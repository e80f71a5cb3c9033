"""Everything flor raises.

FlorError
├── ConfigError            a setting that cannot be read or makes no sense
├── ArgumentError          a `--kwargs` value that does not fit its `flor.arg`
├── GitError               git failed, or is missing
│   └── NoRepository       there is none, and flor has not made one yet
├── StoreError             the database cannot be read or written
│   └── SchemaTooNew       the database was written by a newer flor
├── QueryError             a `where` clause or a SQL query that cannot run
├── UnknownRun             no run, or several, answer to a name
├── ObjectMissing          a stored value is not in the object store
├── BucketError            the bucket does not answer, or refuses
├── NoCheckpoint           no checkpoint is at the place that was asked for
├── DamagedCheckpoint      a checkpoint's bytes are not what was written
├── PropagationError       a statement cannot be put into an older version
│   ├── NoPlace            the older version has no equivalent place
│   └── BadSource          a version does not parse, or has no statement where one is named
├── RestoreError           a state does not fit the object that should take it
└── UntrustedPickle        restoring would run code from somebody else's file

A message says what failed, with which value, and what to do next.
"""


class FlorError(Exception):
    """Base of every error that flor raises on purpose."""


class ConfigError(FlorError):
    """A setting cannot be read or makes no sense."""


class ArgumentError(FlorError, ValueError):
    """A value given with `--kwargs` does not fit its `flor.arg`."""


class GitError(FlorError):
    """git failed, or is missing."""


class NoRepository(GitError):
    """The project is in no git repository, and flor has not made one for it yet."""


class StoreError(FlorError):
    """The database cannot be read or written."""


class SchemaTooNew(StoreError):
    """The database was written by a newer flor than this one."""


class QueryError(FlorError, ValueError):
    """A `where` clause or a SQL query cannot run."""


class UnknownRun(FlorError, LookupError):
    """No run, or more than one, answers to a name."""


class ObjectMissing(FlorError, LookupError):
    """A stored value is not in the object store."""


class BucketError(FlorError):
    """The bucket does not answer, or refuses."""


class NoCheckpoint(FlorError, LookupError):
    """No checkpoint is at the place that was asked for."""


class DamagedCheckpoint(FlorError):
    """A checkpoint's bytes are not what was written."""


class PropagationError(FlorError):
    """A statement cannot be put into an older version."""


class NoPlace(PropagationError):
    """The older version has no place that is equivalent; the message names what it lacks."""


class BadSource(PropagationError, ValueError):
    """A version does not parse, or holds no statement where one is named."""


class RestoreError(FlorError, TypeError):
    """A state does not fit the object that should take it."""


class UntrustedPickle(FlorError):
    """Restoring would run code from somebody else's file."""


def with_single_stops(text: str) -> str:
    """The message; where a library's own full stop came before ours, only one is left."""
    words = text.split(" ")
    doubled = [word[-2:] == ".." and word[-3:-2] not in ("", ".", "/") for word in words]
    return " ".join(w[:-1] if double else w for w, double in zip(words, doubled, strict=True))
