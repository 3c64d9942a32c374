"""Dashboard of recorded runs: a static site that needs no network and no server.

    python -m benchmarks.dashboard --help

The modules work in this order: ``__main__`` -> ``views`` (groups of runs) -> ``site`` (list of pages) -> ``overview``, ``kernels``,
``cases``, ``costs``, ``machines``, ``sources`` -> ``plots``, ``tables`` -> ``svg``, ``frame``, ``wording``.
"""
