"""The dashboard: recorded runs as one static site, which needs no network and no server.

    python -m benchmarks.dashboard --help

A page meets the files in this order: ``__main__`` -> ``views`` (what is shown) -> ``site`` (which pages) -> ``overview``, ``kernels``,
``cases``, ``costs``, ``machines``, ``sources`` -> ``plots``, ``tables`` -> ``svg``, ``frame``, ``wording``.
"""
