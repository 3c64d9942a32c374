"""The garbage collector rests while much is made that lasts: modules at the import, and kernels.

To go through all of torch's objects takes a tenth of a second each time: as long as the import, and a quarter of what compiling takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

was_enabled = gc.isenabled()
gc.disable()


def resume() -> None:
    """Collect again, if it was so before the import."""
    if was_enabled:
        gc.enable()


@contextmanager
def paused() -> Iterator[None]:
    """Collect nothing within; after it, collect again if it was so before.

    >>> with paused():
    ...     gc.isenabled()
    False
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
