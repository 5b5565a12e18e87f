"""Plain torch twins: the same keyword names, new tensors returned, sums taken in float64.

They round to bf16 where the kernels do and nowhere else.
"""
