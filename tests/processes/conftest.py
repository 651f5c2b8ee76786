import pytest

from tests.processes.launch import results, run


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """Results of all cases of job.py by the number of processes: a list, by rank. Each number is run once.

    `shared.folders` has where each wrote.
    """
    known = {}

    def of(processes):
        if processes not in known:
            folder = of.folders[processes] = tmp_path_factory.mktemp(f"processes{processes}")
            known[processes] = None  # a run that fails is not tried again by every test
            run(processes, folder)
            known[processes] = results(folder, processes)
        assert known[processes] is not None, "the run of this many processes has failed; the first test says how"
        return known[processes]

    of.folders = {}
    return of
