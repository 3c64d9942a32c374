"""Files of sparse tensors: their syntax, archives, and how they are written."""
