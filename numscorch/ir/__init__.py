"""What programs and formats are.  Knows neither torch nor numba.

In reading order:

* ``loop``     loop IR: the imperative program that becomes Python source
* ``levels``   level formats: how one dimension of a tensor is stored
* ``format``   formats: levels, and which dimension each one stores
* ``index``    index notation: assignments, foralls, where
* ``notation`` index notation as text, printed and parsed
* ``verify``   what every stage may assume
"""
