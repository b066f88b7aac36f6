"""Tables in files, in every form people have them, and back."""

from mlt_jax.files.columns import Table
from mlt_jax.files.tables import align, read_groups, read_share, read_table, rows_like
from mlt_jax.files.write import write_labels
