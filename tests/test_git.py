"""flor.git against real repositories, in every state that users leave them in."""

from __future__ import annotations

import gc
import gzip
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flor.errors import GitError
from flor.git import Repository, SyncReport, head, open_repository
from flor.git.objects import Format, message, trailers
from flor.git.process import Batch, Deadline, Git
from flor.git.selection import File, Limits, choose, may_be_secret
from flor.model import Version

MiB = 1024 * 1024


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine's user plays a part; the user of the tests has a name."""
    configured = tmp_path / "gitconfig"
    configured.write_text(
        "[user]\nname = Ada\nemail = ada@example.org\n[init]\ndefaultBranch = main\n"
        '[protocol "file"]\nallow = always\n'
    )
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configured))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))


class Project:
    """A folder, mostly with a git repository in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def git(self, *args: str, ok: bool = True) -> str:
        done = subprocess.run(
            ["git", *args],
            cwd=self.root,
            capture_output=True,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
        assert done.returncode == 0 or not ok, done.stderr
        return done.stdout.decode(errors="surrogateescape").strip("\n")

    def write(self, path: str, content: str | bytes = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def commit(self, text: str = "work") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", text)
        return self.git("rev-parse", "HEAD")

    def open(self, **options: bool) -> Repository:
        return open_repository(self.root, self.root / ".flor", **options)

    def snapshot(self, **limits: float) -> Version:
        return snapshot(self.open(), **limits)

    def code(self, version: Version) -> dict[str, bytes]:
        """What `git` itself sees in the version's commit."""
        repository = self.open()
        return {
            path: repository.read(version.commit, path) for path in repository.files(version.commit)
        }

    def log(self, ref: str = "refs/heads/flor") -> list[str]:
        return self.git("log", "--format=%s", ref).splitlines()

    def state(self) -> dict[str, object]:
        """All that must stay as it is."""
        git_dir = Path(self.git("rev-parse", "--absolute-git-dir"))
        common = (self.root / self.git("rev-parse", "--git-common-dir")).resolve()
        index, logs = git_dir / "index", common / "logs"
        return {
            "index": index.read_bytes() if index.exists() else None,
            "status": self.git("status", "--porcelain=v2", "--branch"),
            "head": (git_dir / "HEAD").read_bytes(),
            "stash": self.git("stash", "list"),
            "config": (common / "config").read_bytes(),
            "refs": [
                ref for ref in self.git("for-each-ref").splitlines() if "refs/heads/flor" not in ref
            ],
            "logs": {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()},
            "names": sorted(path.name for path in git_dir.iterdir()),
        }


@contextmanager
def untouched(project: Project) -> Iterator[None]:
    """The user's git state is byte for byte the same afterwards."""
    before = project.state()
    yield
    assert project.state() == before
    tmp = project.root / ".flor" / "tmp"
    assert not tmp.exists() or not list(tmp.iterdir())


def snapshot(repository: Repository, **limits: float) -> Version:
    values = {"file_limit": 10 * MiB, "tree_limit": 200 * MiB, "seconds": 60.0, **limits}
    return repository.snapshot(**values)  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A repository with one commit."""
    made = Project(tmp_path / "a project")
    made.git("init", "-q")
    made.write("train.py", "print(1)\n")
    made.write("lib/model.py", "x = 1\n")
    made.write(".gitignore", "*.ckpt\n")
    made.commit("first")
    return made


class HangingGit:
    """A `git` first on PATH that never returns from some commands, with a child of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pids = folder / "pids"
        self._git = folder / "bin" / "git"
        self._git.parent.mkdir()
        self._monkeypatch = monkeypatch

    def start(self, *commands: str, before: str = "") -> None:
        """From now on, `commands` hang (none: all of them)."""
        pattern = "|".join(commands) or "*"
        self._git.write_text(
            f"#!/bin/sh\n{before}\nfor a; do case $a in {pattern})\n"
            f"  echo $$ >> {self._pids}; sleep 300 & echo $! >> {self._pids}; wait; wait; sleep 300\n"
            f'esac; done\nexec {shutil.which("git")} "$@"\n'
        )
        self._git.chmod(0o755)
        path = f"{self._git.parent}{os.pathsep}{os.environ['PATH']}"
        self._monkeypatch.setenv("PATH", path)

    def assert_gone(self) -> None:
        """It was called, and nothing of it is left."""
        pids = self._pids.read_text().split()
        assert pids
        end = time.monotonic() + 2
        while alive := [pid for pid in pids if self.runs(pid)]:
            assert time.monotonic() < end, f"{alive} are still there"
            time.sleep(0.02)

    def runs(self, pid: str) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HangingGit:
    return HangingGit(tmp_path, monkeypatch)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def belongings() -> tuple[set[str], set[str]]:
    """The open files of this process, and its children, dead ones included."""
    gc.collect()
    files, children = set(), set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            files.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    for stat_file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state = stat_file.read_text().rpartition(")")[2].split()
            if int(state[1]) == os.getpid():
                children.add(f"{stat_file.parent.name} {state[0]}")
    return files, children


class TestSnapshot:
    def test_the_tree_is_the_working_tree(self, project: Project) -> None:
        """Edits, deletions and new files are in; ignored files and the staged state are not."""
        project.write("gone.py")
        project.write("staged.py", "old\n")
        project.commit()
        project.write("staged.py", "staged\n")
        project.git("add", "staged.py")
        project.write("staged.py", "on disk\n")
        project.write("train.py", "print(2)\n")
        (project.root / "gone.py").unlink()
        project.write("new/deep.py", "new\n")
        project.write("weights.ckpt", "ignored")
        with untouched(project):
            version = project.snapshot()
        assert project.code(version) == {
            ".gitignore": b"*.ckpt\n",
            "lib/model.py": b"x = 1\n",
            "new/deep.py": b"new\n",
            "staged.py": b"on disk\n",
            "train.py": b"print(2)\n",
        }
        assert version.user_branch == "main"
        assert version.user_commit == project.git("rev-parse", "HEAD")
        assert version.user_dirty
        assert version.left_out == ()
        assert not version.partial

    def test_a_clean_tree_is_the_users_own(self, project: Project) -> None:
        with untouched(project):
            version = project.snapshot()
        assert version.tree == project.git("rev-parse", "HEAD^{tree}")
        assert not version.user_dirty
        assert project.log() == ["First version"]
        assert "Flor-Version: 1" in project.git("log", "-1", "--format=%B", "flor")

    def test_identical_code_makes_no_second_version(self, project: Project) -> None:
        first = project.snapshot()
        project.open().attach_journal(first, "run-1", b"journal", "run-1 finished")
        assert project.snapshot().commit == first.commit
        project.write("train.py", "print(3)\n")
        project.write("more.py", "")
        second = project.snapshot()
        assert second.commit != first.commit
        assert project.snapshot() == second
        assert project.log() == ["more.py and 1 more changed", "run-1 finished", "First version"]

    def test_a_run_that_ends_late_does_not_repeat_a_version(self, project: Project) -> None:
        # v1 ── v2 ── run of v1 ── (v2 again: nothing new)
        old = project.snapshot()
        project.write("train.py", "print(2)\n")
        new = project.snapshot()
        project.open().attach_journal(old, "late", b"", "late")
        assert project.snapshot().commit == new.commit
        project.write("train.py", "print(1)\n")
        assert project.snapshot().commit == old.commit

    def test_going_back_to_older_code_is_a_new_version_of_the_same_tree(
        self, project: Project
    ) -> None:
        old = project.snapshot()
        project.write("train.py", "print(2)\n")
        project.snapshot()
        project.write("train.py", "print(1)\n")
        back = project.snapshot()
        assert (back.tree, back.commit != old.commit) == (old.tree, True)

    def test_the_essential_file_names_the_version(self, project: Project) -> None:
        project.snapshot()
        for path in ("a.py", "z.py"):
            project.write(path, "changed")
        snapshot(project.open(), essential=[project.root / "z.py"])  # type: ignore[arg-type]
        assert project.log()[0] == "z.py and 1 more changed"

    def test_bytes_are_not_converted(self, project: Project) -> None:
        project.git("config", "core.autocrlf", "true")
        project.git("config", "filter.shout.clean", "tr a-z A-Z")
        project.write(".gitattributes", "*.py text eol=lf filter=shout\n")
        project.write("crlf.py", b"a\r\nb\r\n")
        with untouched(project):
            assert project.code(project.snapshot())["crlf.py"] == b"a\r\nb\r\n"

    def test_modes_and_links_are_kept(self, project: Project) -> None:
        project.write("run.sh", "#!/bin/sh\n").chmod(0o755)
        (project.root / "link").symlink_to("lib/model.py")
        (project.root / "broken").symlink_to("/nowhere")
        version = project.snapshot()
        lines = project.git("ls-tree", "-r", version.commit).splitlines()
        assert [line.split("\t")[1] for line in lines if line[:6] == "100755"] == ["run.sh"]
        assert [line.split("\t")[1] for line in lines if line[:6] == "120000"] == ["broken", "link"]
        assert project.code(version)["link"] == b"lib/model.py"

    def test_files_and_folders_that_swap_places(self, project: Project) -> None:
        project.write("a/x.py", "1")
        project.write("b", "file")
        project.write("c/y.py", "2")
        project.commit()
        shutil.rmtree(project.root / "a")
        project.write("a", "now a file")
        (project.root / "b").unlink()
        project.write("b/x.py", "now a folder")
        (project.root / "c").rename(project.root / "d")
        (project.root / "c").symlink_to("d")  # c/y.py has the same times and inode as before
        code = project.code(project.snapshot())
        assert code["a"] == b"now a file"
        assert code["b/x.py"] == b"now a folder"
        assert (code["c"], code["d/y.py"]) == (b"d", b"2")
        assert not {"a/x.py", "b", "c/y.py"} & set(code)

    def test_odd_names(self, project: Project) -> None:
        names = [
            b"sp ace.py",
            b"new\nline.py",
            b"t\tab",
            b"\xff\xfe.py",
            b"-dash",
            b'"quote',
            b"git~1",
        ]
        for name in names:
            with open(os.path.join(os.fsencode(project.root), name), "wb") as file:
                file.write(name)
        with untouched(project):
            version = project.snapshot()
        files = project.open().files(version.commit)
        assert {os.fsencode(path) for path in files} >= set(names)
        assert project.open().read(version.commit, os.fsdecode(b"\xff\xfe.py")) == b"\xff\xfe.py"

    def test_own_folder_is_never_in(self, project: Project) -> None:
        """Not even where somebody committed it, or in a subfolder."""
        project.write(".flor/runs/x/journal.jsonl", "secret")
        project.write("sub/.flor/flor.db", "secret")
        project.git("add", "-f", ".flor", "sub/.flor")
        project.git("commit", "-q", "-m", "oops")
        project.write("sub/.flor/flor.db", "changed")
        code = project.code(project.snapshot())
        assert not [path for path in code if ".flor" in path]

    def test_same_second_same_size_edit_is_seen(self, project: Project) -> None:
        """The copy of the index keeps its time, so that git still looks at racy files."""
        for number in range(5):
            project.write("racy.py", f"{number}\n")
            project.git("add", "racy.py")
            project.write("racy.py", f"{number + 1}\n")
            assert project.code(project.snapshot())["racy.py"] == f"{number + 1}\n".encode()

    def test_a_file_is_hashed_again_only_when_it_changed(self, project: Project) -> None:
        old = time.time() - 100
        file = project.write("data.json", "[1]")
        os.utime(file, (old, old))
        time.sleep(2.1)  # until its ctime counts as settled
        first = project.snapshot()
        assert '"data.json"' in (project.root / ".flor" / "worktree.json").read_text()
        assert project.snapshot() == first
        file.write_text("[2]")
        os.utime(file, (old, old))  # only the ctime tells
        assert project.code(project.snapshot())["data.json"] == b"[2]"

    def test_remembered_objects_may_be_gone(self, project: Project) -> None:
        """The branch was deleted and its objects pruned: all is written again."""
        file = project.write("data.json", "[1]")
        os.utime(file, (1, 1))
        time.sleep(2.1)
        project.snapshot()
        project.git("update-ref", "-d", "refs/heads/flor")
        project.git("prune", "--expire=now")
        assert project.code(project.snapshot())["data.json"] == b"[1]"


class TestLimits:
    def test_large_files_are_listed(self, project: Project) -> None:
        project.write("big.py", b"x" * 3000)
        project.write("kept.bin", b"k" * 3000)
        project.commit()
        project.write("big.py", b"y" * 3001)
        project.write("data.csv", b"z" * 4000)
        version = project.snapshot(file_limit=1000)
        code = project.code(version)
        assert "kept.bin" in code  # tracked and unmodified, whatever its size
        assert "big.py" not in code
        assert [(item.path, item.size_bytes, item.reason) for item in version.left_out] == [
            ("big.py", 3001, "too large"),
            ("data.csv", 4000, "too large"),
        ]

    def test_the_budget_prefers_source(self, project: Project) -> None:
        project.write("a.bin", b"x" * 400)
        project.write("b.py", b"x" * 500)
        project.write("c.py", b"x" * 300)
        version = project.snapshot(tree_limit=900)
        assert {"b.py", "c.py"} < set(project.code(version))
        assert [(item.path, item.reason) for item in version.left_out] == [("a.bin", "budget")]
        assert project.snapshot(tree_limit=900) == version

    def test_what_is_essential_comes_first(self) -> None:
        files = [
            File(path, "100644", (0, 0, size, 0), False)
            for path, size in ((b"a.py", 10), (b"run", 95), (b"b.bin", 5), (b"huge", 1000))
        ]
        limits = Limits(file_bytes=100, tree_bytes=100, essential=frozenset([b"run"]))
        fitting, others = choose(files, limits)
        assert [file.path for file in fitting] == [b"b.bin", b"run"]
        assert [(file.path, why) for file, why in others] == [
            (b"huge", "too large"),
            (b"a.py", "budget"),
        ]

    def test_the_list_has_an_end(self, project: Project) -> None:
        for number in range(1100):
            project.write(f"data/{number}.bin", b"x" * (10 + number))
        version = project.snapshot(file_limit=5)
        assert len(version.left_out) == 1000
        assert max(item.size_bytes for item in version.left_out) == 1109  # the largest are named

    def test_many_files_become_one_pack(self, project: Project) -> None:
        for number in range(400):
            project.write(f"data/{number}.txt", f"{number}")
        version = project.snapshot()
        assert project.code(version)["data/399.txt"] == b"399"
        assert "packs: 1" in project.git("count-objects", "-v")

    def test_nested_repositories_are_not_entered(self, project: Project) -> None:
        inner = Project(project.root / "vendored")
        inner.git("init", "-q")
        inner.write("x.py")
        inner.commit()
        version = project.snapshot()
        assert [(item.path, item.reason) for item in version.left_out] == [
            ("vendored/", "nested repository")
        ]

    def test_pipes_and_sockets_do_not_hang(self, project: Project, monkeypatch) -> None:
        os.mkfifo(project.root / "pipe")
        (project.root / "train.py").unlink()
        os.mkfifo(project.root / "train.py")  # was a file
        monkeypatch.chdir(project.root)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
            version = project.snapshot()
        assert set(project.code(version)) == {".gitignore", "lib/model.py"}
        assert ("train.py", "unreadable") in [(i.path, i.reason) for i in version.left_out]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_unreadable_files_are_listed(self) -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            project = Project(Path(folder) / "project")
            project.git("init", "-q")
            project.write("train.py", "1")
            project.write("secret.py", "2").chmod(0)
            for path in (Path(folder), project.root, *project.root.rglob("*")):
                os.chown(path, 65534, 65534)
            read, write = os.pipe()
            if (child := os.fork()) == 0:  # pragma: no cover
                try:
                    os.setuid(65534)
                    os.environ["GIT_CONFIG_GLOBAL"] = os.devnull
                    version = project.snapshot()
                    told = [(item.path, item.reason) for item in version.left_out]
                    os.write(write, repr((sorted(project.code(version)), told)).encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            assert os.read(read, 1000).decode() == "(['train.py'], [('secret.py', 'unreadable')])"
            os.close(read)
            os.close(write)

    def test_files_that_change_while_looked_at(self, project: Project) -> None:
        """Files come, grow and vanish all the time; no snapshot fails."""
        script = (
            "import os, sys, itertools\n"
            "for n in itertools.count():\n"
            "    for i in range(20):\n"
            "        with open(f'churn{i}.py', 'w') as f: f.write('x' * (n % 50))\n"
            "    for i in range(20): os.unlink(f'churn{i}.py')\n"
        )
        child = subprocess.Popen([sys.executable, "-c", script], cwd=project.root)
        try:
            for _ in range(15):
                assert "train.py" in project.open().files(project.snapshot().commit)
        finally:
            child.kill()
            child.wait()


class TestTime:
    def test_no_time_gives_a_partial_version(self, project: Project) -> None:
        project.write("big.txt", b"x" * 1000)
        script = project.root / "train.py"
        outside = project.root.parent / "gitconfig"
        with untouched(project):
            version = project.open().snapshot(
                file_limit=MiB, tree_limit=MiB, seconds=0, essential=[script, outside]
            )
        assert version.partial
        assert project.code(version) == {"train.py": b"print(1)\n"}
        assert not project.snapshot().partial

    def test_slow_git_is_killed_with_its_children(
        self, project: Project, hanging: HangingGit
    ) -> None:
        """A git whose `ls-files` never ends: there is a partial version soon after."""
        repository = project.open()
        hanging.start("ls-files")
        with untouched(project), within(3):
            version = repository.snapshot(
                file_limit=MiB, tree_limit=MiB, seconds=0.5, essential=[Path("train.py")]
            )
        assert version.partial
        hanging.assert_gone()

    @pytest.mark.parametrize("before", ["", "trap '' TERM"])
    def test_a_git_that_hangs_is_not_waited_for(
        self, project: Project, hanging: HangingGit, before: str
    ) -> None:
        """Even if it does not care for SIGTERM."""
        repository = project.open()
        version = snapshot(repository)
        hanging.start(before=before)
        with within(2), pytest.raises(GitError, match=r"not answer within 0\.3 s \(git rev-parse"):
            open_repository(project.root, project.root / ".flor", seconds=0.3)
        with within(2), pytest.raises(GitError, match=r"within 0\.3 s \(git cat-file in /"):
            repository.attach_journal(version, "r", b"j", "r", seconds=0.3)
        with within(4), pytest.raises(GitError, match=r"within 2\.3 s \(git unpack-objects in /"):
            repository.snapshot(
                file_limit=MiB, tree_limit=MiB, seconds=0.3, essential=[Path("train.py")]
            )
        hanging.assert_gone()

    @pytest.mark.parametrize(
        "command", ["check-ignore", "init", "for-each-ref", "config", "cat-file"]
    )
    def test_opening_has_an_end(self, project: Project, hanging: HangingGit, command: str) -> None:
        folder = project.root / "lib"
        if command == "init":
            folder = project.root.parent / "plain"
            folder.mkdir()
        hanging.start(command)
        if command == "cat-file":  # not needed to open it
            open_repository(folder, folder / ".flor", seconds=5).root.samefile(project.root)
            return
        with within(2), pytest.raises(GitError, match=f"git {command} in"):
            open_repository(folder, folder / ".flor", seconds=0.5)
        hanging.assert_gone()
        assert not list(folder.glob(".flor/tmp/*"))

    @pytest.mark.parametrize(
        "command", ["cat-file", "diff-tree", "unpack-objects", "update-ref", "write-tree"]
    )
    def test_whatever_hangs_has_an_end(
        self, project: Project, hanging: HangingGit, command: str
    ) -> None:
        """And leaves no lock, no file and no process behind."""
        repository = project.open()
        version = snapshot(repository)
        project.write("train.py", "2\n")
        project.write("sub.py", "2\n")
        hanging.start(command)
        before = belongings()
        with untouched(project):
            with within(4), pytest.raises(GitError, match=f"git {command} in"):
                repository.snapshot(
                    file_limit=MiB, tree_limit=MiB, seconds=0.3, essential=[Path("sub.py")]
                )
            if command in ("cat-file", "unpack-objects", "update-ref"):
                with within(2), pytest.raises(GitError, match=f"git {command} in"):
                    repository.attach_journal(version, "r", b"j", "r", seconds=0.3)
        hanging.assert_gone()
        assert belongings() == before
        assert not list((project.root / ".git").rglob("*.lock"))

    @pytest.mark.parametrize("forked", [False, True])
    def test_a_process_that_ends_takes_git_along(
        self, project: Project, hanging: HangingGit, forked: bool
    ) -> None:
        """Only its own: a forked child has no say in what its parent started."""
        script = (
            "import os, sys, threading, time; from pathlib import Path\n"
            "from flor.git import abandon, open_repository\n"
            "from flor.errors import GitError\n"
            "def begin(): open_repository(Path.cwd(), Path('.flor'))\n"
            "threading.excepthook = lambda args: None\n"
            "threading.Thread(target=begin, daemon=True).start()\n"
            "while not Path(sys.argv[1]).exists(): time.sleep(0.02)\n"
            "time.sleep(0.3)\n"
            "if sys.argv[2] == 'True' and (child := os.fork()): os.waitpid(child, 0); os._exit(0)\n"
            "abandon()\n"
            "try: begin()\n"
            "except GitError as error: assert 'the process ends' in str(error), error\n"
        )
        hanging.start()
        pids = project.root.parent / "pids"
        command = [sys.executable, "-W", "ignore", "-c", script, str(pids), str(forked)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
        with within(10):
            subprocess.run(command, cwd=project.root, env=environment, check=True)
        if forked:
            alive = [int(pid) for pid in pids.read_text().split() if hanging.runs(pid)]
            assert alive
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        hanging.assert_gone()

    def test_a_submodule_that_hangs(
        self, project: Project, hanging: HangingGit, tmp_path: Path
    ) -> None:
        library = Project(tmp_path / "library")
        library.git("init", "-q")
        library.write("code.py")
        library.commit()
        project.git("submodule", "add", "-q", str(library.root), "sub")
        project.commit()
        Project(project.root / "sub").write("code.py", "newer")
        Project(project.root / "sub").commit()
        repository = project.open()
        hanging.start("rev-parse")
        with within(3):
            assert snapshot(repository, seconds=0.3).partial
        hanging.assert_gone()

    def test_nothing_is_left_open(self, project: Project) -> None:
        before = belongings()
        for number in range(3):
            project.write("train.py", f"{number}\n")
            repository = project.open()
            version = snapshot(repository, seconds=20)
            repository.attach_journal(version, f"r{number}", b"j", "r", seconds=20)
            next(repository.journals())
            repository.diff(version.commit, version.commit)
            with pytest.raises(GitError):
                repository.read(version.commit, "none.py")
        assert belongings() == before

    def test_no_thread_is_started(self, project: Project) -> None:
        """The script may fork at any moment, and a process that ends can start none."""
        script = (
            "import sys; from pathlib import Path; from flor.git import open_repository\n"
            "events = []; sys.addaudithook(lambda name, _: events.append(name))\n"
            "r = open_repository(Path.cwd(), Path('.flor'), seconds=50)\n"
            "v = r.snapshot(file_limit=10**7, tree_limit=10**8, seconds=50)\n"
            "r.attach_journal(v, 'r', b'', 'x', seconds=50)\n"
            "assert 'subprocess.Popen' in events\n"
            "assert '_thread.start_new_thread' not in events\n"
        )
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
        subprocess.run(
            [sys.executable, "-c", script], cwd=project.root, env=environment, check=True
        )


class TestSecrets:
    def test_they_stay_on_the_machine(self, project: Project) -> None:
        """Untracked files with the names of secrets are listed, and not on the branch."""
        project.write("deploy/committed.pem", "theirs")
        project.write("added.key", "theirs")
        project.write("models/.env", "KEY=1")
        project.write(".env.local", "KEY=2")
        project.write("kept/secrets.py", "def load(): ...")
        project.write("kept/.env.example", "KEY=")
        project.git("add", "-f", "deploy", "added.key")
        project.git("commit", "-q", "-m", "keys", "deploy")
        project.write("deploy/committed.pem", "theirs, edited")
        with untouched(project):
            version = project.snapshot()
        code = project.code(version)
        assert code["deploy/committed.pem"] == b"theirs, edited"
        assert {"added.key", "kept/secrets.py", "kept/.env.example"} < set(code)
        assert [(item.path, item.size_bytes, item.reason) for item in version.left_out] == [
            (".env.local", 5, "may hold secrets"),
            ("models/.env", 5, "may hold secrets"),
        ]
        assert not {".env.local", "models/.env"} & set(code)
        assert "KEY=1" not in project.git("grep", "-I", "KEY", version.commit, ok=False)

    def test_they_do_not_make_the_code_dirty(self, project: Project) -> None:
        project.write(".env", "KEY=1")
        version = project.snapshot()
        assert version.tree == project.git("rev-parse", "HEAD^{tree}")
        assert not version.user_dirty

    def test_in_a_folder_without_repository(self, tmp_path: Path) -> None:
        project = Project(tmp_path / "plain")
        project.write("train.py", "1")
        project.write(".env", "KEY=1")
        assert set(project.code(project.snapshot())) == {"train.py"}

    def test_once_removed_from_the_index_they_leave_the_next_version(
        self, project: Project
    ) -> None:
        project.write(".env", "KEY=1")
        project.commit()
        assert ".env" in project.code(project.snapshot())
        project.git("rm", "-q", "--cached", ".env")
        assert ".env" not in project.code(project.snapshot())

    def test_what_runs_is_code(self, project: Project) -> None:
        """A script with such a name is versioned when it is the one that runs."""
        project.write("credentials", "#!/usr/bin/env python\n")
        version = snapshot(project.open(), essential=[project.root / "credentials"])  # type: ignore[arg-type]
        assert "credentials" in project.code(version)

    def test_they_are_named_before_large_files(self, project: Project) -> None:
        for number in range(1100):
            project.write(f"data/{number}.bin", b"x" * 10)
        project.write(".env", "K=1")
        version = project.snapshot(file_limit=5)
        assert version.left_out[0].path == ".env"

    @pytest.mark.parametrize(
        "name",
        [
            ".env", ".env.local", ".ENV.Production", "tls.pem", "a/b/server.key", "id_rsa",
            "id_rsa.pub", "id_ed25519_work", "cert.p12", "cert.PFX", ".netrc", ".pypirc", ".npmrc",
            "credentials", ".aws/credentials", "credentials.json", "app.keystore", "secrets.yaml",
            ".streamlit/secrets.toml", "secrets.sh", "kaggle.json", ".git-credentials",
        ],
    )  # fmt: skip
    def test_names_of_secrets(self, name: str) -> None:
        assert may_be_secret(name.encode())

    @pytest.mark.parametrize(
        "name",
        [
            "secrets.py", "lib/secrets.ipynb", ".env.example", ".env.template", ".env.sample",
            "secrets.yaml.example", "environment.yml", "credentials.py", "id_rsa_tools.py",
            "keys.json", "monkey", "secrets/readme.md", "env", "a.env.txt", "credentials/notes.txt",
        ],
    )  # fmt: skip
    def test_names_of_other_things(self, name: str) -> None:
        assert not may_be_secret(name.encode())


class TestStates:
    def test_unborn_head(self, tmp_path: Path) -> None:
        project = Project(tmp_path / "new")
        project.git("init", "-q")
        project.write("train.py", "1")
        with untouched(project):
            version = project.snapshot()
            project.open().attach_journal(version, "r", b"", "r")
        assert (version.user_branch, version.user_commit) == ("main", None)
        assert version.user_dirty
        assert head(project.root) == ("main", None)

    def test_detached_head(self, project: Project) -> None:
        project.git("checkout", "-q", "--detach")
        with untouched(project):
            version = project.snapshot()
        assert version.user_branch is None
        assert version.user_commit == project.git("rev-parse", "HEAD")
        assert head(project.root) == (None, version.user_commit)

    def test_merge_in_progress(self, project: Project) -> None:
        project.git("checkout", "-q", "-b", "other")
        project.write("train.py", "other\n")
        project.write("lib/model.py", "kept by them\n")
        project.commit()
        project.git("checkout", "-q", "main")
        project.write("train.py", "main\n")
        (project.root / "lib/model.py").unlink()
        project.commit()
        project.git("merge", "other", ok=False)
        assert project.git("ls-files", "-u")
        (project.root / "lib/model.py").unlink()
        with untouched(project):
            code = project.code(project.snapshot())
        assert b"<<<<<<<" in code["train.py"]
        assert "lib/model.py" not in code

    def test_intent_to_add(self, project: Project) -> None:
        project.write("soon.py", "soon\n")
        project.write("large.py", "x" * 100)
        project.git("add", "-N", "soon.py", "large.py")
        with untouched(project):
            version = project.snapshot(file_limit=50)
        assert project.code(version)["soon.py"] == b"soon\n"
        assert "large.py" not in project.code(version)

    def test_hidden_edits_are_seen(self, project: Project) -> None:
        """Assume-unchanged and skip-worktree only hide an edit from the user's own git."""
        project.git("update-index", "--assume-unchanged", "train.py")
        project.git("update-index", "--skip-worktree", "lib/model.py")
        project.write("train.py", "hidden 1\n")
        project.write("lib/model.py", "hidden 2\n")
        with untouched(project):
            code = project.code(project.snapshot())
        assert (code["train.py"], code["lib/model.py"]) == (b"hidden 1\n", b"hidden 2\n")

    def test_sparse_checkout_keeps_what_is_absent(self, project: Project) -> None:
        project.write("docs/a.md", "a")
        project.commit()
        project.git("sparse-checkout", "init", "--cone")
        project.git("sparse-checkout", "set", "lib")
        assert not (project.root / "docs").exists()
        with untouched(project):
            version = project.snapshot()
        assert version.tree == project.git("rev-parse", "HEAD^{tree}")

    def test_split_index(self, project: Project) -> None:
        project.git("update-index", "--split-index")
        project.git("config", "core.splitIndex", "true")
        project.write("train.py", "split\n")
        with untouched(project):
            assert project.code(project.snapshot())["train.py"] == b"split\n"

    def test_broken_index(self, project: Project) -> None:
        """Without a readable index, the working tree alone says what the code is."""
        (project.root / ".git" / "index").write_bytes(b"DIRC no index")
        version = project.snapshot()
        assert version.tree == project.git("rev-parse", "HEAD^{tree}")

    def test_locked_index(self, project: Project) -> None:
        (project.root / ".git" / "index.lock").write_bytes(b"")
        project.write("train.py", "locked\n")
        assert project.code(project.snapshot())["train.py"] == b"locked\n"

    def test_linked_worktree(self, project: Project) -> None:
        project.git("worktree", "add", "-q", "../linked", "-b", "side")
        linked = Project(project.root.parent / "linked")
        linked.write("train.py", "in the linked one\n")
        with untouched(linked), untouched(project):
            version = linked.snapshot()
        assert linked.code(version)["train.py"] == b"in the linked one\n"
        assert version.user_branch == "side"
        assert project.open().read(version.commit, "train.py") == b"in the linked one\n"

    def test_subfolder(self, project: Project) -> None:
        """The repository is versioned as a whole, and the subfolder's .flor/ is not in it."""
        sub = project.root / "lib"
        repository = open_repository(sub, sub / ".flor")
        assert repository.root == project.root
        version = snapshot(repository)
        assert version.tree == project.git("rev-parse", "HEAD^{tree}")
        assert project.git("status", "--porcelain") == ""

    def test_submodule(self, project: Project, tmp_path: Path) -> None:
        library = Project(tmp_path / "library")
        library.git("init", "-q")
        library.write("code.py")
        library.commit()
        project.git("submodule", "add", "-q", str(library.root), "sub")
        project.commit()
        inner = Project(project.root / "sub")
        inner.write("code.py", "newer")
        moved = inner.commit()
        with untouched(project):
            version = project.snapshot()
        assert f"160000 commit {moved}\tsub" in project.git("ls-tree", version.commit)
        assert "sub" not in project.open().files(version.commit)
        shutil.rmtree(inner.root)
        assert "sub" not in project.git("ls-tree", project.snapshot().commit)

    def test_sha256(self, tmp_path: Path) -> None:
        project = Project(tmp_path / "sha256")
        project.git("init", "-q", "--object-format=sha256")
        project.write("train.py", "1")
        repository = project.open()
        version = snapshot(repository)
        repository.attach_journal(version, "r", b"journal", "r")
        assert len(version.commit) == 64
        assert list(repository.journals()) == [("r", b"journal")]
        project.git("fsck", "--strict")

    def test_shallow_clone(self, project: Project, tmp_path: Path) -> None:
        project.write("second.py")
        project.commit()
        project.git("clone", "-q", "--depth=1", f"file://{project.root}", str(tmp_path / "shallow"))
        shallow = Project(tmp_path / "shallow")
        with untouched(shallow):
            version = shallow.snapshot()
            shallow.open().attach_journal(version, "r", b"", "r")
        assert "second.py" in shallow.code(version)

    def test_nobody_is_configured(
        self, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        author = ("log", "-1", "--format=%an <%ae>", "flor")
        project.snapshot()
        assert project.git(*author) == "Ada <ada@example.org>"
        (tmp_path / "gitconfig").write_text("[user]\nuseConfigOnly = true\n")
        project.write("train.py", "2")
        project.snapshot()
        assert project.git(*author) == "flor <flor@localhost>"

    def test_signing_and_hooks_stay_out(self, project: Project) -> None:
        project.git("config", "commit.gpgSign", "true")
        project.git("config", "gpg.program", "false")
        mark = project.root.parent / "hooked"
        for name in ("reference-transaction", "pre-commit", "post-commit", "post-index-change"):
            hook = project.write(f".git/hooks/{name}", f"#!/bin/sh\ntouch '{mark}'\nexit 1\n")
            hook.chmod(0o755)
        hook = project.write(".git/hooks/fsmonitor", f"#!/bin/sh\ntouch '{mark}'\n")
        hook.chmod(0o755)
        project.git("config", "core.fsmonitor", ".git/hooks/fsmonitor")
        project.write("train.py", "2")
        repository = project.open()
        repository.attach_journal(snapshot(repository), "r", b"", "r")
        assert not mark.exists()

    def test_variables_of_an_outer_git(
        self, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
            monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
        monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
        repository = project.open()
        version = snapshot(repository)
        assert repository.git_dir == project.root / ".git"
        assert repository.diff(version.commit, version.commit) == ""

    def test_no_automatic_gc(self, project: Project) -> None:
        project.git("config", "gc.auto", "1")
        for number in range(5):
            project.write("train.py", f"{number}")
            repository = project.open()
            repository.attach_journal(snapshot(repository), f"r{number}", b"", "r")
        assert "packs: 0" in project.git("count-objects", "-v")


class TestOpen:
    def test_a_folder_without_repository_gets_a_private_one(self, tmp_path: Path) -> None:
        project = Project(tmp_path / "plain")
        project.write("train.py", "1")
        with pytest.raises(GitError, match="in no git repository"):
            project.open(create=False)
        assert not (project.root / ".flor").exists()
        repository = project.open()
        assert repository.private
        assert repository.git_dir == project.root / ".flor" / "repo.git"
        version = snapshot(repository)
        assert (version.user_branch, version.user_commit, version.user_dirty) == (None, None, False)
        repository.attach_journal(version, "r", b"j", "r")
        project.write("train.py", "2")
        later = snapshot(project.open(create=False))
        assert later.commit != version.commit
        assert project.code(later) == {"train.py": b"2"}
        assert list(project.open().journals()) == [("r", b"j")]
        assert not (project.root / ".git").exists()

    def test_a_project_that_the_repository_ignores_is_outside(self, project: Project) -> None:
        project.write("scratch/.gitignore", "*\n")
        project.write("scratch/train.py")
        scratch = project.root / "scratch"
        project.write(".gitignore", "scratch/\n")
        assert open_repository(scratch, scratch / ".flor").private

    def test_bare(self, tmp_path: Path) -> None:
        bare = Project(tmp_path / "bare")
        bare.git("init", "-q", "--bare")
        with pytest.raises(GitError, match="bare"):
            bare.open()

    def test_broken(self, project: Project) -> None:
        (project.root / ".git" / "HEAD").unlink()
        with pytest.raises(GitError, match="damaged"):
            project.open()

    def test_broken_link_to_a_repository(self, tmp_path: Path) -> None:
        project = Project(tmp_path / "linked")
        project.write(".git", "gitdir: /nowhere\n")
        with pytest.raises(GitError, match="damaged"):
            project.open()

    def test_inside_the_git_folder(self, project: Project) -> None:
        with pytest.raises(GitError, match="inside a git folder"):
            open_repository(project.root / ".git", project.root / ".flor")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
    def test_owned_by_another_user(self, project: Project, monkeypatch) -> None:
        monkeypatch.delenv("SUDO_UID", raising=False)
        for path in (project.root, project.root / ".git"):
            os.chown(path, 65534, 65534)
        with pytest.raises(GitError, match=r"safe\.directory"):
            project.open()

    def test_no_git(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(GitError, match="install it"):
            project.open()

    def test_flor_dir_cannot_be_written(self, project: Project) -> None:
        project.write(".flor", "a file")
        with pytest.raises(GitError, match="cannot prepare"):
            project.snapshot()


class TestBranch:
    def test_the_users_own_branch_is_left_alone(self, project: Project) -> None:
        project.git("branch", "flor")
        project.git("branch", "flor-runs")
        with untouched(project):
            version = project.snapshot()
        assert project.open().ref == "refs/heads/flor-runs-2"
        assert project.git("rev-parse", "flor-runs-2") == version.commit
        project.git("branch", "-D", "flor")
        assert project.open().ref == "refs/heads/flor-runs-2"  # once chosen, it stays

    @pytest.mark.parametrize("unborn", [False, True])
    def test_head_is_on_a_branch_of_that_name(self, tmp_path: Path, unborn: bool) -> None:
        project = Project(tmp_path / "project")
        project.git("init", "-q", "--initial-branch=flor")
        project.write("train.py")
        if not unborn:
            project.commit()
        with untouched(project):
            project.snapshot()
        assert project.open().ref == "refs/heads/flor-runs"

    def test_checked_out_after_the_start(self, project: Project) -> None:
        """The user looks at the branch while a run goes on: its journal goes elsewhere."""
        repository = project.open()
        version = snapshot(repository)
        project.git("checkout", "-q", "flor")
        with untouched(project):
            repository.attach_journal(version, "r", b"j", "r")
        project.git("checkout", "-q", "main")
        assert list(project.open().journals()) == [("r", b"j")]

    def test_checked_out_in_another_worktree(self, project: Project) -> None:
        project.snapshot()
        project.git("worktree", "add", "-q", "../look", "flor")
        assert project.open().ref == "refs/heads/flor-runs"

    @pytest.mark.parametrize(("own", "setting"), [("flor/x", "flor"), ("team", "team/flor")])
    def test_names_that_block_each_other(self, project: Project, own: str, setting: str) -> None:
        project.git("branch", own)
        if own == "team":
            with pytest.raises(GitError, match="set another"):
                open_repository(project.root, project.root / ".flor", setting)
            return
        assert project.open().ref == "refs/heads/flor-runs"

    def test_a_name_that_no_branch_can_have(self, project: Project) -> None:
        for name in ("a b", "-x", "a..b", "x.lock", "", "a//b"):
            with pytest.raises(GitError, match="no name for a branch"):
                open_repository(project.root, project.root / ".flor", name)

    def test_a_branch_with_a_slash(self, project: Project) -> None:
        repository = open_repository(project.root, project.root / ".flor", "ml/flor")
        repository.attach_journal(snapshot(repository), "r", b"j", "r")
        assert repository.ref == "refs/heads/ml/flor"
        assert list(repository.journals()) == [("r", b"j")]

    def test_the_users_branches_get_no_reflog(self, project: Project) -> None:
        before = project.git("reflog", "--all")
        repository = project.open()
        repository.attach_journal(snapshot(repository), "r", b"", "r")
        assert project.git("reflog", "--all") == before

    def test_a_stale_lock_says_what_to_remove(self, project: Project) -> None:
        repository = project.open()
        version = snapshot(repository)
        lock = project.write(".git/refs/heads/flor.lock")
        hours_ago = time.time() - 3 * 3600
        os.utime(lock, (hours_ago, hours_ago))
        project.write("train.py", "2")
        old = rf"locked by {re.escape(str(lock))}, left 180 min ago .* remove it when no git"
        with within(4), pytest.raises(GitError, match=old):
            project.snapshot()
        with within(1.5), pytest.raises(GitError, match=old):
            repository.attach_journal(version, "r", b"j", "r", seconds=0.5)
        lock.unlink()
        assert not project.snapshot().partial
        repository.attach_journal(version, "r", b"j", "r")

    def test_a_lock_of_this_moment_is_not_to_be_removed(self, project: Project) -> None:
        repository = project.open()
        version = snapshot(repository)
        lock = project.write(".git/refs/heads/flor.lock")
        with within(4), pytest.raises(GitError) as caught:
            repository.attach_journal(version, "r", b"j", "r")
        assert f"locked by {lock}: another git is at work" in str(caught.value)
        assert "remove" not in str(caught.value)

    def test_a_lock_is_waited_for(self, project: Project) -> None:
        repository = project.open()
        version = snapshot(repository)
        lock = project.write(".git/refs/heads/flor.lock")
        holder = subprocess.Popen(["sh", "-c", 'sleep 0.5; rm "$0"', str(lock)])
        repository.attach_journal(version, "r", b"j", "r", seconds=20)
        assert holder.wait() == 0
        assert list(repository.journals()) == [("r", b"j")]


class TestJournals:
    def test_a_run_commit_is_the_version_and_its_journal(self, project: Project) -> None:
        repository = project.open()
        version = snapshot(repository)
        payload = gzip.compress(b'{"t":"run"}\n')
        with untouched(project):
            commit = repository.attach_journal(version, "20261118-r1", payload, "train.py\nin 3 s")
        assert project.git("rev-parse", "flor") == commit
        assert project.git("log", "-1", "--format=%s", commit) == "train.py in 3 s"
        assert (
            project.git("log", "-1", "--format=%(trailers:key=Flor-Run,valueonly)", commit).strip()
            == "20261118-r1"
        )
        changed = project.git("diff-tree", "-r", "--name-status", version.commit, commit)
        assert changed == "A\t.flor/runs/20261118-r1.jsonl.gz"
        assert repository.files(commit) == repository.files(version.commit)
        assert list(repository.journals()) == [("20261118-r1", payload)]
        assert list(repository.journals({"20261118-r1"})) == []
        project.git("fsck", "--strict")

    def test_without_a_version(self, project: Project) -> None:
        repository = project.open()
        assert list(repository.journals()) == []
        repository.attach_journal(None, "r", b"j", "r")
        lost = Version(commit="1" * 40, tree="2" * 40)
        repository.attach_journal(lost, "s", b"k", "s")
        project.git("config", "grep.patternType", "fixed")
        assert list(repository.journals()) == [("s", b"k"), ("r", b"j")]
        assert repository.files(project.git("rev-parse", "flor")) == {}
        assert snapshot(repository).tree == project.git("rev-parse", "HEAD^{tree}")

    def test_a_name_that_leads_elsewhere(self, project: Project) -> None:
        repository = project.open()
        with pytest.raises(GitError, match="no run id"):
            repository.attach_journal(None, "../../x", b"", "x")
        tree = project.git("rev-parse", "HEAD^{tree}")
        evil = project.git("commit-tree", tree, "-m", "x", "-m", "Flor-Run: ../../../evil")
        project.git("update-ref", "refs/heads/flor", evil)
        assert list(project.open().journals()) == []

    def test_a_subject_cannot_forge_trailers(self) -> None:
        text = message("x\n\nFlor-Run: other", Flor_Run="own")
        assert trailers(text.encode()) == {"Flor-Run": "own"}
        assert trailers(b"Flor-Run: only a subject\n") == {}

    def test_thousands(self, project: Project) -> None:
        repository = project.open()
        version = snapshot(repository)
        _import_runs(project, version, 3000)
        project.git("gc", "-q")
        began = time.monotonic()
        found = dict(repository.journals())
        assert time.monotonic() - began < 5
        assert len(found) == 3000
        assert found["run-17"] == b"journal 17"
        some = repository.journals()
        assert next(some)[0] == "run-2999"
        some.close()  # type: ignore[attr-defined]
        assert snapshot(project.open()).commit == version.commit

    def test_processes_at_once_all_land(self, project: Project) -> None:
        """Twelve runs start and end together; equal code is one version."""
        script = (
            "import sys; from pathlib import Path; from flor.git import open_repository\n"
            "root, n = Path(sys.argv[1]), sys.argv[2]\n"
            "r = open_repository(root, root / '.flor')\n"
            "v = r.snapshot(file_limit=10**7, tree_limit=10**8, seconds=60)\n"
            "r.attach_journal(v, f'run-{n}', n.encode(), f'run {n}')\n"
        )
        command = [sys.executable, "-c", script, str(project.root)]
        with untouched(project):
            children = [subprocess.Popen([*command, str(n)]) for n in range(12)]
            assert [child.wait() for child in children] == [0] * 12
        assert dict(project.open().journals()) == {f"run-{n}": str(n).encode() for n in range(12)}
        assert project.log().count("First version") == 1
        assert len(project.log()) == 13

    def test_processes_at_once_without_a_repository(self, tmp_path: Path) -> None:
        project = Project(tmp_path / "plain")
        project.write("train.py")
        script = (
            "import sys; from pathlib import Path; from flor.git import open_repository\n"
            "root = Path(sys.argv[1]); r = open_repository(root, root / '.flor')\n"
            "v = r.snapshot(file_limit=10**7, tree_limit=10**8, seconds=60)\n"
            "r.attach_journal(v, f'run-{sys.argv[2]}', b'', 'x')\n"
        )
        command = [sys.executable, "-c", script, str(project.root)]
        children = [subprocess.Popen([*command, str(n)]) for n in range(6)]
        assert [child.wait() for child in children] == [0] * 6
        assert len(list(project.open().journals())) == 6


class TestReading:
    def test_checkout_is_byte_for_byte(self, project: Project, tmp_path: Path) -> None:
        project.git("config", "core.autocrlf", "true")
        project.write("crlf.txt", b"a\r\nb\n")
        project.write("run.sh", "#!/bin/sh\n").chmod(0o755)
        project.write("empty", b"")
        (project.root / "link").symlink_to("lib")
        repository = project.open()
        version = snapshot(repository)
        commit = repository.attach_journal(version, "r", b"", "r")
        project.write("crlf.txt", "later")
        into = tmp_path / "out" / "version"
        with untouched(project):
            repository.checkout(commit, into)
        names = sorted(p.relative_to(into).as_posix() for p in into.rglob("*"))
        assert names == [
            ".gitignore", "crlf.txt", "empty", "lib", "lib/model.py", "link", "run.sh", "train.py"
        ]  # fmt: skip
        assert (into / "crlf.txt").read_bytes() == b"a\r\nb\n"
        assert (into / "run.sh").stat().st_mode & stat.S_IXUSR
        assert not (into / "train.py").stat().st_mode & stat.S_IXUSR
        assert (into / "link").readlink() == Path("lib")
        with pytest.raises(GitError, match="not empty"):
            repository.checkout(commit, into)

    def test_checkout_stays_in_its_folder(self, project: Project, tmp_path: Path) -> None:
        blob = project.git("rev-parse", "HEAD:train.py")
        form = Format()
        evil = form.tree([(b"100644", b"x", blob)])
        top = form.tree([(b"40000", b"..", evil.oid)])
        for tree in (evil, top):
            path = project.write(f"../{tree.oid}", tree.data)
            project.git("hash-object", "-t", "tree", "-w", "--literally", str(path))
        with pytest.raises(GitError, match="git itself never makes"):
            project.open().checkout(top.oid, tmp_path / "out")

    def test_objects_of_any_size_and_names_of_any_length(self, project: Project) -> None:
        """More than a pipe holds, in both directions."""
        deep = "/".join(["d" * 200] * 10)
        big = os.urandom(3 * MiB)
        project.write(f"{deep}/small", "s")
        project.write("big", big)
        commit = project.commit()
        names = [f"{commit}:{deep}/{name}" for name in ("small", "none")] * 100
        with Batch(Git(project.root, project.root / ".git", Deadline(60))) as batch:
            found = list(batch.many([*names, f"{commit}:big"]))
            assert [item and item.data for item in found] == [b"s", None] * 100 + [big]
            assert batch.get("none such") is None

    def test_damaged_objects_do_not_stop_the_others(self, project: Project) -> None:
        """What git says of each is read, or it would wait for that in the end."""
        oid = project.git("rev-parse", "HEAD:train.py")
        damaged = project.root / ".git/objects" / oid[:2] / oid[2:]
        damaged.unlink()
        damaged.write_bytes(b"no object")
        with Batch(Git(project.root, project.root / ".git", Deadline(60))) as batch:
            assert list(batch.many([oid] * 2000)) == [None] * 2000
            assert batch.get("HEAD:lib/model.py") is not None

    def test_git_that_dies(self, project: Project, hanging: HangingGit) -> None:
        hanging.start(
            "none", before='for a; do case $a in cat-file) echo "oh no" >&2; exit 3; esac; done'
        )
        told = pytest.raises(GitError, match=r"git cat-file failed in .*: oh no;")
        with Batch(Git(project.root, project.root / ".git")) as batch, told:
            batch.get("HEAD")

    def test_diff(self, project: Project) -> None:
        project.git("config", "diff.external", "false")
        project.git("config", "diff.up.textconv", "false")
        project.write(".gitattributes", "*.py diff=up\n")
        repository = project.open()
        old = snapshot(repository)
        project.write("train.py", "print(2)\n")
        new = snapshot(repository)
        run = repository.attach_journal(new, "r", b"j", "r")
        text = repository.diff(old.commit, run)
        assert text.splitlines()[-2:] == ["-print(1)", "+print(2)"]
        assert ".flor" not in text
        assert "\x1b[" in repository.diff(old.tree, new.tree, color=True)
        assert "1 file changed" in repository.diff(old.commit, run, stat=True)
        assert repository.diff(new.commit, run) == ""

    def test_read(self, project: Project) -> None:
        repository = project.open()
        version = snapshot(repository)
        assert repository.read(version.commit, "lib/model.py") == b"x = 1\n"
        with pytest.raises(GitError, match=r"has no file 'none\.py'"):
            repository.read(version.commit, "none.py")
        with pytest.raises(GitError, match="no commit id"):
            repository.read("--help", "train.py")
        with pytest.raises(GitError, match="ls-tree failed"):
            repository.files("f" * 40)


class TestSync:
    @pytest.fixture
    def clones(self, project: Project, tmp_path: Path) -> tuple[Project, Project]:
        project.git("clone", "-q", "--bare", str(project.root), str(tmp_path / "hub.git"))
        for name in ("ada", "bob"):
            project.git("clone", "-q", str(tmp_path / "hub.git"), str(tmp_path / name))
        return Project(tmp_path / "ada"), Project(tmp_path / "bob")

    def record(self, project: Project, run_id: str) -> Version:
        repository = project.open()
        version = snapshot(repository)
        repository.attach_journal(version, run_id, run_id.encode(), run_id)
        return version

    def test_nothing_to_share_with(self, project: Project) -> None:
        assert project.open().sync() == SyncReport()
        with pytest.raises(GitError, match="git remote add"):
            project.open().sync(push=True)
        with pytest.raises(GitError, match="no remote 'x'"):
            project.open().sync("x")

    def test_runs_travel(self, clones: tuple[Project, Project]) -> None:
        ada, bob = clones
        self.record(ada, "a1")
        with untouched_but_tracking(ada):
            assert ada.open().sync() == SyncReport(ahead=2)
            assert ada.open().sync(push=True) == SyncReport(pushed=True)
        ada.write("train.py", "pushed\n")
        ada.commit()
        ada.git("push", "-q", "origin", "main")
        bob.git("config", "fetch.prune", "true")
        with untouched_but_tracking(bob):  # origin/main has moved, and is not fetched
            assert bob.open().sync() == SyncReport(fetched=("origin",))
        assert list(bob.open().journals()) == [("a1", b"a1")]
        # Bob's code is the same, so that his run continues Ada's version.
        self.record(bob, "b1")
        assert bob.log() == ["b1", "a1", "First version"]

    def test_a_fetched_branch_is_continued(self, clones: tuple[Project, Project]) -> None:
        """After a plain `git fetch`, the first local version stands on the remote's."""
        ada, bob = clones
        self.record(ada, "a1")
        ada.git("push", "-q", "origin", "flor")
        bob.git("fetch", "-q")
        self.record(bob, "b1")
        assert bob.log() == ["b1", "a1", "First version"]
        bob.git("push", "-q", "origin", "flor")

    def test_both_sides_ran(self, clones: tuple[Project, Project]) -> None:
        # a1 ─────┐
        # b1 ─ merge, which a plain push fast-forwards
        ada, bob = clones
        self.record(ada, "a1")
        bob.write("train.py", "bob's\n")
        version = self.record(bob, "b1")
        ada.git("push", "-q", "origin", "flor")
        with untouched_but_tracking(bob):
            report = bob.open().sync()
        assert report == SyncReport(fetched=("origin",), merged=True, ahead=3)
        assert dict(bob.open().journals()) == {"a1": b"a1", "b1": b"b1"}
        assert bob.snapshot().commit == version.commit  # the code has not changed by the merge
        bob.git("push", "-q", "origin", "flor")
        assert ada.open().sync() == SyncReport(fetched=("origin",))
        assert dict(ada.open().journals()) == {"a1": b"a1", "b1": b"b1"}
        assert ada.open().ref == "refs/heads/flor"

    def test_push_merges_what_came_in_between(self, clones: tuple[Project, Project]) -> None:
        ada, bob = clones
        self.record(ada, "a1")
        self.record(bob, "b1")
        assert ada.open().sync(push=True).pushed
        assert bob.open().sync(push=True) == SyncReport(("origin",), merged=True, pushed=True)
        self.record(ada, "a2")
        assert ada.open().sync(push=True).pushed
        assert {run for run, _ in ada.open().journals()} == {"a1", "a2", "b1"}

    def test_a_remote_that_is_away(self, clones: tuple[Project, Project]) -> None:
        ada, _ = clones
        ada.git("remote", "set-url", "origin", "/nowhere.git")
        with pytest.raises(GitError, match="cannot fetch flor from the remote 'origin'"):
            ada.open().sync()

    def test_a_stale_lock_ends_it(self, clones: tuple[Project, Project]) -> None:
        ada, bob = clones
        self.record(ada, "a1")
        assert ada.open().sync(push=True).pushed
        for ours in (False, True):  # to fast-forward; to merge
            if ours:
                self.record(ada, "a2")
                assert ada.open().sync(push=True).pushed
                self.record(bob, "b1")
            lock = bob.write(".git/refs/heads/flor.lock")
            with within(8), pytest.raises(GitError, match=r"flor\.lock"):
                bob.open().sync()
            lock.unlink()

    def test_the_remotes_own_branch(self, clones: tuple[Project, Project]) -> None:
        """Somebody's `flor` on the remote that flor did not make: another name is used."""
        ada, bob = clones
        ada.git("push", "-q", "origin", "main:flor")
        bob.git("fetch", "-q")
        assert bob.open().ref == "refs/heads/flor-runs"
        self.record(bob, "b1")
        assert bob.open().sync(push=True).pushed
        ada.git("fetch", "-q")
        assert list(ada.open().journals()) == [("b1", b"b1")]


@contextmanager
def untouched_but_tracking(project: Project) -> Iterator[None]:
    """As `untouched`; the remote-tracking branch of flor may move."""

    def state() -> dict[str, object]:
        found = project.state()
        found["refs"] = [ref for ref in found["refs"] if "/flor" not in ref]  # type: ignore[attr-defined]
        found["logs"] = {k: v for k, v in found["logs"].items() if "flor" not in k.name}  # type: ignore[attr-defined]
        return found

    before = state()
    yield
    assert state() == before


def _import_runs(project: Project, version: Version, count: int) -> None:
    """Many run commits at once, as `attach_journal` makes them."""
    lines = [f"reset refs/heads/flor\nfrom {version.commit}\n"]
    for number in range(count):
        text = message(f"run {number}", Flor_Run=f"run-{number}", Flor_Code=version.commit)
        lines.append(
            f"commit refs/heads/flor\ncommitter A <a@b> {1700000000 + number} +0000\n"
            f"data {len(text)}\n{text}M 040000 {version.tree} \n"
            f"M 100644 inline .flor/runs/run-{number}.jsonl.gz\n"
            f"data {len(f'journal {number}')}\njournal {number}\n"
        )
    subprocess.run(
        ["git", "fast-import", "--quiet"],
        cwd=project.root,
        input="".join(lines).encode(),
        check=True,
    )
