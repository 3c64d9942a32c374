"""Pages: explanations as HTML, tensors as pictures. Nothing here is imported before somebody asks for one.

``walking`` finds which coordinates positions have, by the level functions; ``rasters`` counts them in a grid; ``sketches`` keeps
what is drawn of a tensor, without the tensor. ``trees``, ``nests``, ``highlighting`` and ``roofline`` write a part of a page each,
``explaining`` and ``tensors`` whole ones, with ``style.css``; ``spying`` draws with matplotlib.
"""
