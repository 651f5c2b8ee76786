"""Loss functions in other shapes than a plain one: whether they divide by num_items_in_batch is still found out."""

import functools

import pytest

from tests.backends.support import largest_difference, tagged

LENGTHS = [7, 1, 5, 2, 1, 1, 6, 3, 2, 7, 4, 1, 1, 5, 3, 2]


def decorated(function):
    """Takes anything and hands it on, as decorators for timing or logging do."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def functions(backend):
    def share(outputs, labels, num_items_in_batch):
        return backend.cross_entropy(outputs["logits"], labels, "sum") / num_items_in_batch

    def hands_on(outputs, labels, *rest, **more):
        return share(outputs, labels, **more)

    def hands_on_beside_a_keyword(outputs, labels, *, verbose=False, **more):
        return share(outputs, labels, **more)

    def by_keyword(outputs, labels, *, num_items_in_batch=None):
        return share(outputs, labels, num_items_in_batch)

    def in_a_closure(outputs, labels, num_items_in_batch=None):
        return (lambda: share(outputs, labels, num_items_in_batch))()

    @decorated
    def decorated_that_divides(outputs, labels, num_items_in_batch=None):
        return share(outputs, labels, num_items_in_batch)

    @decorated
    def decorated_mean(outputs, labels, num_items_in_batch=None):
        return backend.cross_entropy(outputs["logits"], labels)

    every = hands_on, hands_on_beside_a_keyword, by_keyword, in_a_closure, decorated_that_divides, decorated_mean
    return {function.__name__: function for function in every}


SHAPES = ["hands_on", "hands_on_beside_a_keyword", "by_keyword", "in_a_closure"]
SHAPES += ["decorated_that_divides", "decorated_mean"]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_split_batch_is_the_whole_batch(backend, trained, shape):
    found = {}
    for micro, accumulation in ((8, 1), (1, 8)):
        model = backend.tagger()
        before = backend.weights(model)
        trained(
            model,
            tagged(LENGTHS),
            compute_loss_func=functions(backend)[shape],
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=accumulation,
            optim="sgd",
            learning_rate=0.5,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            max_steps=2,
        )
        found[micro] = backend.weights(model)
        assert largest_difference(before, found[micro]) > 0.01, "nothing was trained"
    assert largest_difference(found[8], found[1]) < 5e-6
