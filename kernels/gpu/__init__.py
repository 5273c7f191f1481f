"""The GPU path: Triton kernels, staged copies and DMA."""
