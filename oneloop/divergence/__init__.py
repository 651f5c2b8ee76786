"""`oneloop diff`: the first place where two runs part, from their recordings (trace_steps)."""

from .comparison import Comparison, Finding, compare
from .runs import compare_runs
from .trainers import diff

__all__ = ["Comparison", "Finding", "compare", "compare_runs", "diff"]
