"""What only the paper's experiments need: noise models, methods by name, theorems, tables and printed numbers."""
