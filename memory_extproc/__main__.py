"""`memory-extproc` and `python -m memory_extproc`."""

from __future__ import annotations

import os
import signal

# Read when numpy is loaded, so it comes first. The products we make are too short to be shared between cores:
# OpenBLAS's second thread would only wait for the next one in a busy loop, two fifths of the sidecar's work
# while it learns. One inference has one core too.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    # While the commands are imported nothing has begun that would have to be ended: Ctrl-C is then the end, as for
    # any program, and no traceback out of somebody's module. Who has it ignored (nohup) keeps that.
    answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if answered:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from memory_extproc.cli.root import app  # noqa: PLC0415 - see above

    if answered:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app()


if __name__ == "__main__":
    main()
