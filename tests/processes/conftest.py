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
            folder = tmp_path_factory.mktemp(f"processes{processes}")
            run(processes, folder)
            known[processes] = results(folder, processes)
            of.folders[processes] = folder
        return known[processes]

    of.folders = {}
    return of
