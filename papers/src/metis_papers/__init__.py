"""The papers' tables and figures, one file each; `metis reproduce` runs them.

Every cell of a table is an ordinary run in a directory of its own. When it ends, the few numbers
that tables and figures need are put into its `cell.json`, and nothing else is read afterwards.
This package may import all of Metis. Metis never imports it: it finds the verb by an entry point.
"""
