"""Numba kernels for CPUs: one row gives the same bits alone, in any batch, on any vector width."""
