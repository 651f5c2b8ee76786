"""MindNLP's torch: `import mindnlp` puts mindtorch, PyTorch's API on MindSpore, in the place of torch.

What works there as it does on PyTorch is taken from the torch folder; the rest is written here. docs/mindnlp.md lists
the differences.
"""
