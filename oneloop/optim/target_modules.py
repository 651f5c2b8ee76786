"""Which modules optim_target_modules names."""

import re
from typing import Any


def check_target_module_exists(optim_target_modules: Any, key: str, return_is_regex: bool = False) -> Any:
    """Whether a module's name matches the targets: a regular expression, or a list of substrings and expressions.

    With return_is_regex, a pair: that, and whether a regular expression matched.
    """
    if isinstance(optim_target_modules, str):
        found, is_regex = bool(re.fullmatch(optim_target_modules, key)), optim_target_modules != key
    else:
        found, is_regex = any(target in key for target in optim_target_modules), False
        if not found:
            found = is_regex = any(re.fullmatch(target, key) for target in optim_target_modules)
    return (found, is_regex) if return_is_regex else found
