"""Programs: statements that are computed together, fused where they share loops, their gradients, and functions traced into them."""
