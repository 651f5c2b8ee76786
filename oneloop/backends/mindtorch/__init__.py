"""MindNLP's torch: `import mindnlp` replaces torch with mindtorch, PyTorch's API on MindSpore.

What works as on PyTorch is reused from the torch folder; the rest is implemented here. docs/mindnlp.md lists the
differences.
"""
