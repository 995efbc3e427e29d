"""Progress on a terminal; nothing at all where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Says = Callable[[str, int, int], None]  # step, done, of how many


@contextmanager
def progress() -> Iterator[Says]:
    """One bar for each step, on stderr, gone when it is over."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = {}

        def says(step: str, done: int, whole: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=whole)
            bars.update(tasks[step], completed=done, total=whole)

        yield says
