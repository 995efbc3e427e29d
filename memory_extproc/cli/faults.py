"""How a fault ends a command: exit 2 for wrong use and configuration, 1 for what failed; never a traceback
for what the operator can mend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from memory_extproc.errors import ConfigurationError, GiveUpError, MemoryExtprocError


@contextmanager
def faults_to_exit() -> Iterator[None]:
    """Prints an error of ours to stderr and ends with its exit code."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        yield
    except ConfigurationError as error:
        count = len(error.faults)
        console.print(f"the configuration has {'a fault' if count == 1 else f'{count} faults'}:", style="bold red")
        for fault in error.faults:
            console.print(f"  {fault}", markup=False)
        raise typer.Exit(2) from error
    except MemoryExtprocError as error:
        console.print(str(error), style="bold red", markup=False)
        raise typer.Exit(1) from error


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """For imports that only the optional dependencies *name* bring; GiveUpError says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise GiveUpError(f"{package} is not installed: pip install 'memory-extproc[{name}]'") from error
