"""Two and four processes against one with the same global batch."""

import numpy as np
import pytest

from tests.distributed.launch import EQUAL


def difference(left, right):
    return float(np.abs(np.array(left, dtype=np.float64) - np.array(right, dtype=np.float64)).max())


@pytest.fixture(params=[2, 4], ids=["two", "four"])
def many(request, shared):
    return shared(request.param)


@pytest.fixture
def one(shared):
    return shared(1)[0]


@pytest.mark.parametrize("case", EQUAL)
def test_the_update_is_that_of_the_undivided_batch(case, one, many):
    alone, together = one[case], many[0][case]
    assert together["steps"] == alone["steps"]
    for name, weights in alone["weights"].items():
        assert difference(weights, together["weights"][name]) <= (1e-5 if case == "adamw" else 1e-6)
    assert difference(alone["losses"], together["losses"]) <= 1e-6 * max(1.0, *alone["losses"])
    assert difference(alone["norms"], together["norms"]) <= 1e-5
    assert abs(alone["train_loss"] - together["train_loss"]) <= 1e-6


@pytest.mark.parametrize("case", EQUAL)
def test_all_processes_have_the_same_weights_and_logs(case, many):
    for other in many[1:]:
        assert other[case] | {"asked": 0} == many[0][case] | {"asked": 0}


def check_loss_table(alone, together):
    """Whoever divides the loss, the updates of several processes are those of one."""
    for name, found in together[0].items():
        assert all(each[name] == found for each in together), name
        if found["compared"] is not None:
            assert found["steps"] == alone[name]["steps"], name
            for layer, weights in alone[name]["weights"].items():
                assert difference(weights, found["weights"][layer]) <= 1e-6, name
            assert difference(alone[name]["losses"], found["losses"]) <= 1e-6 * max(alone[name]["losses"]), name


def test_who_divides_the_loss(one, shared):
    check_loss_table(one["loss_table"], [each["loss_table"] for each in shared(2)])


@pytest.mark.parametrize("case", ["sgd", "few_left"])
def test_each_global_batch_has_the_same_samples(case, one, many):
    """Positions are dealt out in runs, so an epoch read batch by batch and rank by rank is that of one process."""
    batch, size = 8, len(many)
    share, epoch = batch // size, len(one[case]["asked"]) // 2
    for start in (0, epoch):
        alone = one[case]["asked"][start : start + epoch]
        queues = [list(each[case]["asked"]) for each in many]
        if start:  # the second epoch
            queues = [queue[len(queue) // 2 :] for queue in queues]
        for begin in range(0, epoch - epoch % batch, batch):
            together = [sample for queue in queues for sample in [queue.pop(0) for _ in range(share)]]
            assert together == alone[begin : begin + batch]
        rest = [queue[: -(-(epoch % batch) // size)] for queue in queues]
        left = [sample for rank, queue in enumerate(rest) for sample in queue[: _part(epoch % batch, size, rank)]]
        assert left == alone[epoch - epoch % batch :]


def _part(count, size, rank):
    return count // size + (rank < count % size)


def test_an_evaluation_counts_every_sample_once_and_in_order(one, many):
    alone = one["evaluated"]
    for each in many:
        found = each["evaluated"]
        assert found["labels"] == alone["labels"]
        assert difference(found["predictions"], alone["predictions"]) <= 1e-6
        assert found["metrics"]["eval_count"] == 31
        assert found["metrics"]["eval_accuracy"] == alone["metrics"]["eval_accuracy"]
        assert abs(found["metrics"]["eval_loss"] - alone["metrics"]["eval_loss"]) <= 1e-6
        assert abs(found["test_loss"] - alone["test_loss"]) <= 1e-6
        assert found["all_metrics"] == many[0]["evaluated"]["all_metrics"]


def test_every_single_gradient_is_that_of_one_process(one, many):
    """Under AdamW, in every update."""
    assert np.abs(one["gradients"]).max() > 0.01
    for each in many:
        assert difference(each["gradients"], one["gradients"]) <= 1e-5


def test_half_precision_and_recomputing(one, many):
    alone, together = one["recomputed_in_half"], many[0]["recomputed_in_half"]
    assert together["steps"] == alone["steps"]
    assert difference(alone["losses"], together["losses"]) <= 0.02  # bfloat16 has three digits
    assert all(each["recomputed_in_half"]["weights"] == together["weights"] for each in many)


def test_processes_can_weigh_the_same(one, many):
    """The loss is the mean of the processes' own means, which is not that of all tokens."""
    found = many[0]["process_means"]["losses"]
    assert all(each["process_means"]["losses"] == found for each in many)
    assert abs(found[0] - one["process_means"]["losses"][0]) > 1e-4
