import pytest

from tests.distributed.launch import EQUAL, results, run

# What four processes run unless the slow tests are asked for, which look at all cases.
OF_FOUR = ("evaluated", "gradients", "recomputed_in_half", "process_means", "resumed", "elastic", "noisy")


@pytest.fixture(scope="session")
def shared(request, tmp_path_factory):
    """Results of all cases of job.py by the number of processes: a list, by rank. Each number is run once.

    `shared.folders` has where each wrote.
    """
    known = {}
    brief = request.config.option.markexpr == "not slow"

    def of(processes):
        if processes not in known:
            folder = of.folders[processes] = tmp_path_factory.mktemp(f"processes{processes}")
            known[processes] = None  # a run that fails is not tried again by every test
            run(processes, folder, *((*EQUAL, *OF_FOUR) if brief and processes == 4 else ()))
            known[processes] = results(folder, processes)
        assert known[processes] is not None, "the run of this many processes has failed; the first test says how"
        return known[processes]

    of.folders = {}
    return of
