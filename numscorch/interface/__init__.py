"""Public functions that are no operators: einsum and its relatives, plan, fuse and warm, and the check of level formats."""
