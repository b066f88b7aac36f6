"""The paper's tables, ours beside theirs: which cells a table has, how they are run, how they are written.

`plan` says which runs a table is made of, `label_only` and `cells` compute them, `launch` distributes them, `results`
and `write` make tables of them. `experiments/tables.py` is the command.
"""
