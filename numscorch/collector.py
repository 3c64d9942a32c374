"""The garbage collector rests while the package is imported: to go through all of torch's objects, once, takes as long as the import."""

from __future__ import annotations

import gc

was_enabled = gc.isenabled()
gc.disable()


def resume() -> None:
    """Collect again, if it was so before the import."""
    if was_enabled:
        gc.enable()
