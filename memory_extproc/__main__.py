"""`memory-extproc` and `python -m memory_extproc`."""

from __future__ import annotations

import gc
import os
import signal

# Read when numpy is loaded, so it comes first. Our products are too small to share between cores: OpenBLAS's second
# thread would wait for work in a busy loop, two fifths of the sidecar's work while it learns. One inference has one
# core too.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    # During the import of commands nothing needs cleanup: Ctrl-C then ends the process as usual, without a
    # traceback. An ignored signal (nohup) stays ignored.
    answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if answered:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # imports leave no garbage, and looking for it takes an eighth of their time
    from memory_extproc.cli.root import app  # noqa: PLC0415 - see above

    gc.enable()

    if answered:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app()


if __name__ == "__main__":
    main()
