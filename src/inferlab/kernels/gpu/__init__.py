"""Triton kernels, one file an op: kernel, launcher and the fewest bytes it must move.

On a machine without a CUDA GPU the kernels run in Triton's interpreter, slowly and on CPU tensors:
that is how they are tested and shown. Each module imports without Triton; calling a kernel then
says what is missing.
"""
