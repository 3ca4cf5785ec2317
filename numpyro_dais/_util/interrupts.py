# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""Ctrl-C at a time when the process survives it."""

from collections.abc import Iterator
from contextlib import contextmanager
import signal
import threading
from types import FrameType

__all__ = ["interrupts_held"]


@contextmanager
def interrupts_held() -> Iterator[None]:
    """
    Holds Ctrl-C back to the end of a block in which XLA may compile. A ``KeyboardInterrupt`` that
    is raised while it does ends the interpreter, at its exit, with a segmentation fault: with any
    function that takes a while to compile, and nothing of this package (jaxlib 0.8 to 0.10).

    Calls of compiled programs return before their results are there, so what is held back is the
    compilation, and not the run.
    """
    handler = signal.getsignal(signal.SIGINT)
    # Only the main thread has handlers; and SIG_IGN and SIG_DFL are no functions.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if held:
        handler(*held[0])
