"""flor's git side: versions of the code and journals of the runs, on a branch of its own."""

from flor.git.discovery import open_repository
from flor.git.process import abandon
from flor.git.repository import Repository, head
from flor.git.sharing import SyncReport

__all__ = ["Repository", "SyncReport", "abandon", "head", "open_repository"]
