"""Dashboard of recorded runs: a static site that needs no network and no server.

    python -m benchmarks.dashboard --help

The modules work in this order: ``__main__`` -> ``views`` (groups of runs) -> ``site`` (list of pages) -> ``overview``, ``kernels``,
``cases``, ``costs``, ``machines``, ``sources`` (the values for a page) -> ``plots``, ``svg`` -> ``templates``, ``places``, ``wording``.
The HTML is in ``templates/``: ``page.html`` is the frame of all pages, ``parts.html`` the macros that pages share.

Another site can embed a page in a frame. The page then looks like a part of that site: it follows the color-scheme of the frame, or the
theme of a message ``{"theme": "light" | "dark"}``, and sends its height as ``{"height": pixels}``.
"""
