"""One folder per framework, with the same files and function names in each: see base.py, registry.py and loading.py.

Nothing outside this package imports torch, paddle or mindspore.
"""
