"""Operations of the networks that have kernels of their own on a GPU.

Each is one function in a file of its own, with its reference in torch and its one decision which of
the two computes. The kernels are in `*_cuda.py` beside it, since Triton must be there to read them.
"""
