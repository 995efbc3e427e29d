"""The folder of Markdown as a git repository: a commit for each export, so that what changed can be read.

History remembers what was forgotten: it is outside the reach of forget, until `rewrite` drops what is gone from it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final

from memory_extproc.errors import GiveUpError
from memory_extproc.portability.folder import Mirrored, list_pages
from memory_extproc.portability.markdown import FOLDERS, id_at

_AUTHOR = {
    "GIT_AUTHOR_NAME": "memory-extproc",
    "GIT_AUTHOR_EMAIL": "memory-extproc@localhost",
    "GIT_COMMITTER_NAME": "memory-extproc",
    "GIT_COMMITTER_EMAIL": "memory-extproc@localhost",
}
# A page's line ends are part of the memory: git may not touch them, whatever its user configured.
_ATTRIBUTES: Final = "*.md -text\n"


class Repository:
    """A git repository at *root*, made where there is none. Needs the `git` command. GiveUpError where it fails."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self._root / ".git").exists():
            self._git("init", "--quiet", "--initial-branch=main")
        attributes = self._root / ".gitattributes"
        if not attributes.exists():
            attributes.write_text(_ATTRIBUTES)

    def commit(self, mirrored: Mirrored) -> bool:
        """Commits the pages as they are now; False when nothing changed. The message tells numbers alone."""
        ours = [".gitattributes", *(folder for folder in sorted(set(FOLDERS.values())) if self._known(folder))]
        self._git("add", "--all", "--", *ours)
        if self._run("diff", "--cached", "--quiet").returncode == 0:
            return False
        message = f"Export: {mirrored.written} written, {mirrored.removed} removed"
        self._git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", message)
        return True

    def _known(self, folder: str) -> bool:
        """Git takes it for a mistake to be told of what is neither there nor tracked."""
        return (self._root / folder).is_dir() or bool(self._git("ls-files", "--", folder))

    def rewrite(self) -> int:
        """Drops from all of history every page whose memory has no page now, and the bytes from the repository;
        says how many memories that were. Commits change their names: who cloned the repository has the old ones."""
        there = {id_at(place) for place in list_pages(self._root)}
        gone = {id_ for id_ in self._ever() if id_ not in there}
        if not gone:
            return 0
        self._filtered(lambda path: id_at(PurePosixPath(path)) in gone)
        self._git("reset", "--quiet", "--mixed")
        self._git("reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all")
        # What `fetch` or an unfinished merge left behind would keep old commits alive.
        for name in ("FETCH_HEAD", "ORIG_HEAD"):
            (self._root / ".git" / name).unlink(missing_ok=True)
        self._git("gc", "--quiet", "--prune=now")
        return len(gone)

    def _ever(self) -> set[str]:
        """The ids of all pages that any commit has."""
        names = self._git(
            "log", "--all", "--pretty=format:", "--name-only", "--no-renames", "--diff-merges=separate"
        )
        return {id_at(PurePosixPath(name)) for name in set(names.splitlines()) if name} - {""}

    def _filtered(self, drop: Callable[[str], bool]) -> None:
        """History written anew without the paths to *drop*, as a stream from one git into another."""
        export = ["fast-export", "--all", "--signed-tags=strip", "--tag-of-filtered-object=rewrite", "--no-data"]
        with (
            self._open(export, stdout=subprocess.PIPE) as out,
            self._open(["fast-import", "--quiet", "--force"], stdin=subprocess.PIPE) as into,
        ):
            if out.stdout is None or into.stdin is None:
                raise GiveUpError("git has no pipes")
            try:
                for piece in _without(out.stdout, drop):
                    into.stdin.write(piece)
                into.stdin.close()
            except BrokenPipeError:
                pass  # the exit code says it
        if out.returncode or into.returncode:
            raise GiveUpError("git could not write the history anew; it is as it was")

    def _git(self, *arguments: str) -> str:
        done = self._run(*arguments)
        if done.returncode:
            raise GiveUpError(f"git {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode(errors="surrogateescape")

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(  # noqa: S603 - a command of ours, no shell
                self._command(*arguments), env=self._environment, capture_output=True, check=False
            )
        except FileNotFoundError:
            raise GiveUpError("the git command is not installed") from None

    def _open(
        self, arguments: list[str], *, stdin: int | None = None, stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - as above
            self._command(*arguments), env=self._environment, stdin=stdin, stdout=stdout
        )

    def _command(self, *arguments: str) -> list[str]:
        # Names as they are, and no hook or program that somebody's configuration names.
        safe = ("-c", "core.quotePath=false", "-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false")
        return ["git", *safe, "-C", str(self._root), *arguments]  # the one in PATH

    @property
    def _environment(self) -> dict[str, str]:
        """Ours alone: GIT_DIR and its like, set while a hook runs, would point into another repository."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return {**kept, **_AUTHOR, "LC_ALL": "C"}


def _without(stream: IO[bytes], drop: Callable[[str], bool]) -> Iterator[bytes]:
    """A fast-export stream less the changes of dropped paths. Messages are passed over by their length: a line in
    one that looks like a command is none."""
    for line in stream:
        if line.startswith(b"data "):
            yield line
            left = int(line[5:])
            while left:
                piece = stream.read(min(left, 65536))
                if not piece:
                    return
                left -= len(piece)
                yield piece
        elif line.startswith((b"M ", b"D ")):
            if not drop(_path_of(line)):
                yield line
        else:
            yield line


def _path_of(line: bytes) -> str:
    """Of `M mode name path` or `D path`; a path that git quotes is none of ours."""
    parts = line.rstrip(b"\n").split(b" ", 3 if line.startswith(b"M ") else 1)
    return parts[-1].decode(errors="surrogateescape")
