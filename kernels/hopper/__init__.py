"""Kernels for NVIDIA GPUs of class Hopper, in Triton; other classes inherit them."""
