"""The tree in whose order gradients are added up."""

import pytest

from oneloop.distributed.sum_tree import BlockSum, add_up, halves, roots


def shown(leaves):
    """The tree as text: how it is added up on one process."""

    def of(node):
        if node[1] - node[0] == 1:
            return str(node[0])
        left, right = halves(node)
        return f"({of(left)}+{of(right)})"

    return of((0, leaves))


def join(left, right):
    return f"({left}+{right})"


@pytest.mark.parametrize("leaves", [1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 24, 60])
def test_any_number_of_processes_adds_in_the_same_order(leaves):
    for parts in (number for number in range(1, leaves + 1) if leaves % number == 0):
        found = {}
        for part in range(parts):
            block = BlockSum(leaves, part, parts, join)
            each = leaves // parts
            for place in range(each):
                block.put(place, str(part * each + place), "-")
            found |= dict(zip(roots(leaves, parts)[part], block.finish("-"), strict=True))
        assert add_up((0, leaves), found, join) == shown(leaves)


def test_leaves_that_were_left_out():
    block = BlockSum(8, 1, 2, join)
    block.put(1, "5", "-")
    block.put(2, "6", "-")
    assert block.finish("-") == ["((-+5)+(6+-))"]
    assert BlockSum(4, 0, 1, join).finish("-") == ["((-+-)+(-+-))"]


@pytest.mark.parametrize("processes, most", [(1, 1), (2, 1), (3, 3), (4, 1), (6, 2), (12, 1)])
def test_how_many_sums_a_process_sends(processes, most):
    """Of 12 micro-batches: one where its block is a subtree."""
    assert max(map(len, roots(12, processes))) == most


def test_few_sums_are_kept():
    block, kept = BlockSum(1024, 0, 1, lambda left, right: left + right), []
    for place in range(1024):
        block.put(place, 1, 0)
        kept.append(len(block._sums))
    assert max(kept) == 10 and block.finish(0) == [1024]
