"""The intermediate representations: tensor formats, index notation and loop IR. Imports neither torch nor Numba.

In reading order:

* ``loop``     loop IR: the imperative program that becomes Python source
* ``level``    the interface of level formats: how one dimension of a tensor is stored
* ``levels``   the basic level formats: dense, compressed and singleton
* ``format``   formats: levels, and the dimension that each level stores
* ``index``    index notation: assignments, foralls, where
* ``notation`` printer and parser of index notation
* ``verify``   checks that a statement is well formed
"""
