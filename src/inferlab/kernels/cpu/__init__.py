"""SIMD kernels for the CPU, written in Python and compiled by numba.

Kernels take addresses and sizes, so that one compilation serves every shape. They run in a
`team` of threads without the GIL; sums are reassociated, NaN and infinity are kept.
Each module imports without numba; calling a kernel then says what is missing.
"""
