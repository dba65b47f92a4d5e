"""Kernels that may become the fused backend's, beside those it has: checked, and timed in turns with them on a GPU.

None of this has run on a GPU yet. What wins moves into `hypermargin.backends.fused`; the rest is deleted.
"""
