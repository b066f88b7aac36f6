"""The paper's tables, ours beside theirs: which cells a table has, how they are run, how they are written.

`paper` has the printed numbers, `plan` what each of them is called here, `label_only` and `cells` compute, `launch`
distributes, `write` prints. `experiments/tables.py` is the command.
"""
