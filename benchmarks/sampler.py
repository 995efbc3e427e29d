"""`python -m benchmarks.sampler OUT serve …`: the product's command line, with a record of its CPU time.

A timer on the CPU clock of the main thread, where the event loop runs, interrupts it every few milliseconds of its
own work; each sample counts for the thread's time since the one before, and belongs to the innermost function of
the product on the stack. Other threads count as a whole, by name. SIGUSR1 writes what was counted so far to OUT.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

import msgspec

PERIOD = 0.002  # seconds of the main thread's CPU
OUTSIDE = "event loop, gRPC, libraries"
NATIVE = "threads of libraries"
_PRODUCT = "/memory_extproc/"
_SIGEV_THREAD_ID = 4  # sigevent(7)
_CLOCK_THREAD_CPUTIME_ID = 3


class Counted(msgspec.Struct, frozen=True):
    """Seconds of CPU since the start."""

    process: float
    functions: dict[str, float]  # of the main thread, by "module function"
    threads: dict[str, float]  # the others


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("rest", ctypes.c_int * 12),
    )


class _Times(ctypes.Structure):
    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class Sampler:
    """Samples the thread that starts it, which must be the main thread."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._functions = defaultdict[str, float](float)
        self._last = time.thread_time()

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._sample)
        signal.siginterrupt(signal.SIGPROF, False)  # noqa: FBT003 - as the library has it
        signal.signal(signal.SIGUSR1, lambda *_: self._write())
        library = ctypes.CDLL(None, use_errno=True)
        event = _Event(signal=signal.SIGPROF, notify=_SIGEV_THREAD_ID, thread=threading.get_native_id())
        timer = ctypes.c_void_p()
        every = int(PERIOD * 1e9)
        times = _Times(every_ns=every, first_ns=every)
        if library.timer_create(_CLOCK_THREAD_CPUTIME_ID, ctypes.byref(event), ctypes.byref(timer)) or (
            library.timer_settime(timer, 0, ctypes.byref(times), None)
        ):
            raise OSError(ctypes.get_errno(), "no timer on the CPU clock of a thread")

    def _sample(self, _: int, frame: FrameType | None) -> None:
        now = time.thread_time()
        while frame is not None:
            module = frame.f_code.co_filename.rpartition(_PRODUCT)[2]
            if module != frame.f_code.co_filename and not module.startswith(("cli/", "__main__")):
                self._functions[f"{module.removesuffix('.py')} {frame.f_code.co_qualname}"] += now - self._last
                break
            frame = frame.f_back
        else:
            self._functions[OUTSIDE] += now - self._last
        self._last = time.thread_time()  # without what the sampling takes

    def _write(self) -> None:
        names = {one.native_id: one.name.rpartition("_")[0] or one.name for one in threading.enumerate()}
        main = threading.main_thread().native_id
        threads = defaultdict[str, float](float)
        for path in Path("/proc/self/task").iterdir():
            if int(path.name) != main:
                used = int((path / "schedstat").read_text().split()[0]) / 1e9
                threads[names.get(int(path.name), NATIVE)] += used
        counted = Counted(time.process_time(), dict(self._functions), dict(threads))
        made = self._out.with_suffix(".part")
        made.write_bytes(msgspec.json.encode(counted))
        made.replace(self._out)


def main() -> None:
    Sampler(Path(sys.argv.pop(1))).start()
    from memory_extproc.__main__ import main as product  # noqa: PLC0415 - what it imports is counted too

    product()


if __name__ == "__main__":
    main()
