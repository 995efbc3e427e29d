"""`memory-extproc memory export|import|sync`: memories as files."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console

from memory_extproc.cli.api_client import ApiClient, ApiError, UserOption
from memory_extproc.cli.config import AsJson, Says, progress
from memory_extproc.cli.output import plain, show_json
from memory_extproc.errors import ConfigurationError, PermanentError
from memory_extproc.model import ImportProblem, ImportReport

# File formats, git and gRPC are imported on use, for a quick `--help`.

_TRIES = 5  # of an export that breaks off, without a memory in between
_NOTED_EVERY = 500  # memories, when a file's place is written down for --resume


def export(
    api: ApiClient,
    *,
    out: Annotated[str, typer.Argument(help="a file, a folder for markdown, or - for stdout")],
    format_: Annotated[
        Literal["jsonl", "markdown"], typer.Option("--format", help="one file, or a folder with a page each")
    ] = "jsonl",
    project: Annotated[str, typer.Option(help="only of this project")] = "",
    git: Annotated[
        bool, typer.Option("--git", help="with markdown: a commit for each export; history is beyond forget")
    ] = False,
    git_forget: Annotated[
        bool, typer.Option("--git-forget", help="and write history anew without the memories that are gone")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="with jsonl: go on with a file that broke off")] = False,
    user: UserOption = "",
    as_json: AsJson = False,
) -> None:
    """Write down everything that is remembered: the same memories are the same bytes."""
    markdown, git = format_ == "markdown", git or git_forget
    faults = _contradictions(
        out, project, markdown=markdown, git=git, git_forget=git_forget, resume=resume, as_json=as_json
    )
    if faults:
        raise ConfigurationError(faults)
    with progress() as says:
        source = _Export(api, user, project, says)
        if markdown:
            done = _to_folder(source, Path(out), git=git, forget=git_forget)
        else:
            done = _to_lines(source, out, resume=resume)
    if as_json:
        show_json(done)
        return
    console = Console(stderr=True, highlight=False)
    console.print(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in done.items()), markup=False)
    if git and not git_forget:
        console.print("git's history is beyond the reach of forget; --git-forget drops what is gone from it")
    if markdown and source.waiting:
        console.print(f"{source.waiting} turns are not learned yet; --format jsonl has them")


def _contradictions(
    out: str, project: str, *, markdown: bool, git: bool, git_forget: bool, resume: bool, as_json: bool
) -> list[str]:
    stdout = out == "-"
    faults = {
        "--git: only with --format markdown": git and not markdown,
        "--git-forget: not with --project, which would drop all other projects from history": git_forget
        and bool(project),
        "-: a folder is needed for --format markdown": markdown and stdout,
        "--resume: only with a file; a folder writes what changed anyway": resume and (markdown or stdout),
        "--json: the export itself goes to stdout": as_json and stdout,
    }
    return [fault for fault, there in faults.items() if there]


def import_(
    api: ApiClient,
    *,
    source: Annotated[str, typer.Argument(help="a file, a folder of an export, or - for stdin")],
    from_: Annotated[
        Literal["memory-extproc", "mem0", "vllm-semantic-router"], typer.Option("--from", help="who wrote it")
    ] = "memory-extproc",
    from_user: Annotated[str, typer.Option(help="whose memories to take of a file with several people's")] = "",
    on_conflict: Annotated[
        Literal["keep", "replace"], typer.Option(help="for a memory that is there with another content")
    ] = "keep",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="change nothing and say what would be")] = False,
    user: UserOption = "",
    as_json: AsJson = False,
) -> None:
    """Import memories. Run it again after an interruption: memories that are stored already are skipped."""
    with ExitStack() as stack, progress() as says:
        reads = _read(source, from_, from_user, stack)
        replace = on_conflict == "replace"
        report, unread = _bring(api, reads, user, says, replace=replace, dry_run=dry_run)
    problems = [*unread, *((one.id or f"memory {one.index + 1}", one.message) for one in report.problems)]
    counts = {
        "added": report.added,
        "same": report.same,
        "replaced": report.replaced,
        "conflicting": report.conflicting,
        "refused": report.refused + len(unread),
    }
    if as_json:
        show_json({**counts, "problems": [{"place": place, "message": message} for place, message in problems]})
    else:
        console = Console(highlight=False)
        console.print(", ".join(f"{name} {count}" for name, count in counts.items()))
        for place, message in problems:
            console.print(f"  {place}: {message}", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def sync(
    api: ApiClient,
    *,
    folder: Annotated[Path, typer.Argument(help="of pages, as export --format markdown writes them")],
    watch: Annotated[bool, typer.Option("--watch", help="go on, whenever a page is edited, until Ctrl-C")] = False,
    every: Annotated[float, typer.Option(min=1, help="with --watch: seconds between looks at the store")] = 60.0,
    deletions: Annotated[
        bool, typer.Option("--deletions", help="a page that is removed is a memory to be forgotten, for good")
    ] = False,
    user: UserOption = "",
    as_json: AsJson = False,
) -> None:
    """Keep a folder of pages and the store the same: edits in pages are applied, with the checks of an import."""
    from memory_extproc.portability.folder_sync import FolderSync  # noqa: PLC0415

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    rounds = FolderSync(folder, _Remote(api, user), deletions=deletions)
    clean = _round(rounds, as_json=as_json)
    if watch:
        _watch(rounds, folder, every, as_json=as_json)
    elif not clean:
        raise typer.Exit(1)


def _watch(rounds: Any, folder: Path, every: float, *, as_json: bool) -> None:
    from watchfiles import watch  # noqa: PLC0415

    looked = time.monotonic()
    for _ in watch(folder, yield_on_timeout=True, rust_timeout=1000, raise_interrupt=False):
        # Our own pages are changes too: only a person's edit, or the time, is a reason to ask the store.
        if rounds.has_edits() or time.monotonic() - looked >= every:
            try:
                _round(rounds, as_json=as_json)
            except ApiError as error:
                typer.echo(str(error), err=True)
            looked = time.monotonic()


def _round(rounds: Any, *, as_json: bool) -> bool:
    done = rounds.round()
    counts = {
        "applied": done.applied,
        "forgotten": done.forgotten,
        "written": done.mirrored.written,
        "removed": done.mirrored.removed,
    }
    if as_json:
        problems = [{"place": place, "message": why} for place, why in done.problems]
        typer.echo(json.dumps({**counts, "problems": problems}, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        console.print(", ".join(f"{name} {count}" for name, count in counts.items()))
        for place, why in done.problems:
            console.print(f"  {place}: {why}", markup=False, soft_wrap=True)
    return not done.problems


class _Export:
    """The chunks of an export. An interrupted export can be resumed."""

    def __init__(self, api: ApiClient, user: str, project: str, says: Says) -> None:
        self._api, self._user, self._project, self._says = api, user, project, says
        self.place = ""  # of the last piece
        self.waiting = 0
        self.memories = 0

    def pieces(self) -> Iterator[Any]:
        failed, whole = 0, 0
        while True:
            pieces = self._api.stream(
                "ExportMemories", user_id=self._user, project_id=self._project, resume_token=self.place
            )
            try:
                for piece in pieces:
                    failed = 0
                    if piece.HasField("header"):
                        whole = piece.header.memories
                        continue
                    self.place = piece.resume_token
                    self.memories += piece.HasField("memory")
                    self.waiting += piece.HasField("turn")
                    self._says("exporting", self.memories, max(whole, self.memories))
                    yield piece
            except ApiError as error:
                failed += 1
                if error.code != "UNAVAILABLE" or failed >= _TRIES or not self.place:
                    raise
                time.sleep(min(2.0 ** (failed - 1), 8.0))
                continue
            return

    def records(self) -> Iterator[Any]:
        return (_record(piece.memory) for piece in self.pieces() if piece.HasField("memory"))


def _record(memory: Any) -> Any:
    from memory_extproc.api.transfer import fields_of  # noqa: PLC0415
    from memory_extproc.portability.records import read_record  # noqa: PLC0415

    given = {name: value for name, value in fields_of(memory).items() if name not in {"user_id", "tenant_id"}}
    given.pop("last_accessed_at", None)
    if "importance" in given:
        given["importance"] = round(given["importance"], 6)
    return read_record(given)


def _to_folder(source: _Export, root: Path, *, git: bool, forget: bool) -> dict[str, int]:
    from memory_extproc.portability.folder_sync import Folder, Repository  # noqa: PLC0415

    repository = Repository(root)
    if git:
        repository.open()
    with Folder(root) as folder:
        for record in source.records():
            folder.put(record)
        mirrored = folder.mirror()
    done = {"memories": source.memories, "written": mirrored.written, "removed": mirrored.removed}
    if git:
        done["commits"] = int(repository.commit(mirrored))
    if forget:
        done["dropped_from_history"] = repository.rewrite()
    return done


def _to_lines(source: _Export, out: str, *, resume: bool) -> dict[str, int]:
    from memory_extproc.portability.records import head  # noqa: PLC0415

    if out == "-":
        sys.stdout.buffer.write(head())
        for piece in source.pieces():
            sys.stdout.buffer.write(_line(piece))
        return {"memories": source.memories, "waiting_turns": source.waiting}
    path = Path(out)
    half, noted = path.with_name(path.name + ".part"), path.with_name(path.name + ".place")
    size, source.place = _read_progress(noted) if resume else (0, "")
    try:
        with os.fdopen(os.open(half, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            file.truncate(size)
            file.seek(size)
            if not size:
                file.write(head())
            for number, piece in enumerate(source.pieces(), 1):
                file.write(_line(piece))
                if number % _NOTED_EVERY == 0:
                    file.flush()
                    noted.write_text(json.dumps({"size": file.tell(), "place": source.place}))
        half.replace(path)
        noted.unlink(missing_ok=True)
    except OSError as error:
        raise PermanentError(f"{path}: {error.strerror}") from error
    return {"memories": source.memories, "waiting_turns": source.waiting}


def _read_progress(noted: Path) -> tuple[int, str]:
    try:
        said = json.loads(noted.read_bytes())
        return int(said["size"]), str(said["place"])
    except FileNotFoundError:
        return 0, ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PermanentError(f"{noted}: cannot be read; export without --resume") from error


def _line(piece: Any) -> bytes:
    from memory_extproc.portability import records  # noqa: PLC0415

    if piece.HasField("memory"):
        return records.line_of(_record(piece.memory))
    if piece.HasField("turn"):
        return records.record_line(records.TURN, plain(piece.turn))
    return records.record_line(records.CONSENT, plain(piece.consent))


def _read(source: str, from_: str, from_user: str, stack: ExitStack) -> Iterable[Any]:
    from memory_extproc.portability.folder_sync import read_folder  # noqa: PLC0415
    from memory_extproc.portability.foreign import Foreign, read_foreign  # noqa: PLC0415
    from memory_extproc.portability.records import read_lines  # noqa: PLC0415

    path = Path(source)
    if path.is_dir():
        if from_ != "memory-extproc":
            raise ConfigurationError([f"--from: {from_} writes files, {source} is a folder"])
        return (read for _, read in read_folder(path))
    try:
        file: IO[bytes] = sys.stdin.buffer if source == "-" else stack.enter_context(path.open("rb"))
    except OSError as error:
        raise ConfigurationError([f"{source}: cannot be read: {error.strerror}"]) from error
    return read_lines(file) if from_ == "memory-extproc" else read_foreign(file, Foreign(from_), user=from_user)


def _bring(
    api: ApiClient, reads: Iterable[Any], user: str, says: Says | None, *, replace: bool, dry_run: bool = False
) -> tuple[Any, list[tuple[str, str]]]:
    """The API's report, and (place, reason) of entries that were invalid before sending."""
    from memory_extproc.portability.records import Refused  # noqa: PLC0415

    unread: list[tuple[str, str]] = []

    def requests() -> Iterator[Any]:
        start = {"user_id": user, "on_conflict": "replace" if replace else "keep", "dry_run": dry_run}
        yield api.message("ImportMemories", start=start)
        for number, read in enumerate(reads, 1):
            if isinstance(read, Refused):
                unread.append((read.place, read.reason))
            else:
                yield api.message("ImportMemories", memory=msgspec.structs.asdict(read))
            if says is not None and number % 100 == 0:
                says("importing", number, number)

    answer = api.send("ImportMemories", requests())
    return answer, unread


class _Remote:
    """The store as a folder's rounds see it."""

    def __init__(self, api: ApiClient, user: str) -> None:
        self._api, self._user = api, user

    def records(self) -> Iterator[Any]:
        return _Export(self._api, self._user, "", lambda *_: None).records()

    def bring(self, records: Sequence[Any]) -> ImportReport:
        answer, _ = _bring(self._api, records, self._user, None, replace=True)
        return ImportReport(
            added=answer.added,
            same=answer.same,
            replaced=answer.replaced,
            conflicting=answer.conflicting,
            refused=answer.refused,
            problems=tuple(ImportProblem(one.index, one.id, one.reason, one.message) for one in answer.problems),
        )

    def forget(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), 1000):
            self._api.call("ForgetMemories", user_id=self._user, memory_ids=ids[start : start + 1000])
