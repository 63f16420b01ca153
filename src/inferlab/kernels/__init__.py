"""Operations on tensors: one entry point an op in `ops`, its backends beneath.

`reference` holds the float64 oracles, `cpu` the SIMD kernels that numba compiles, `backends`
says which of them exist on this machine. Nothing here knows what a model is.
"""
