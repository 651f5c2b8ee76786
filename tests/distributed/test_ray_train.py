"""Ray Train as the launcher, on a real local cluster: its process group, its reports, its restarts."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.backends.support import rows
from tests.distributed.launch import ROOT
from tests.ecosystem.needs import needs

needs("ray", "torch")  # imported by the tests alone: every process that runs tests collects this file

pytestmark = pytest.mark.slow  # the cluster and the workers of each run take half a minute to start
FILES = ("model.safetensors", "optimizer.safetensors", "random.safetensors")


@pytest.fixture(scope="module")
def ray():
    import ray

    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    runtime = {"env_vars": variables}
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False, runtime_env=runtime)
    yield ray
    ray.shutdown()


def launch(folder, function, failures=0, datasets=None, **config):
    """A run on two workers; what Ray returns, and what each worker wrote, by rank."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    run = RunConfig(name="run", storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=failures))
    result = TorchTrainer(
        function,
        train_loop_config={"folder": str(folder), **config},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run,
        datasets=datasets,
    ).fit()
    return SimpleNamespace(
        result=result, ranks=[json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    )


@pytest.fixture(scope="module")
def unbroken(ray, tmp_path_factory):
    from tests.distributed import ray_job

    folder = tmp_path_factory.mktemp("unbroken")
    found = launch(folder, ray_job.train, resume="output_dir", dies=False)
    found.last = folder / "run" / "checkpoint-20"
    return found


def contents(checkpoint):
    return {name: (checkpoint / name).read_bytes() for name in FILES}


def test_rays_process_group_is_used_and_checkpoints_are_reported(unbroken):
    from tests.distributed import ray_job

    assert [each["world"] for each in unbroken.ranks] == [[0, 2], [1, 2]]
    assert len(unbroken.ranks[0]["losses"]) == ray_job.STEPS // 5
    reported = unbroken.result.best_checkpoints
    assert [metrics["step"] for _, metrics in reported] == [5, 10, 15, 20]
    assert [metrics["loss"] for _, metrics in reported] == unbroken.ranks[0]["losses"]
    with unbroken.result.checkpoint.as_directory() as folder:
        assert contents(Path(folder) / "checkpoint") == contents(unbroken.last)


@pytest.mark.parametrize("resume", ["output_dir", "reported"])
def test_a_run_that_lost_a_worker_ends_with_the_bytes_of_an_unbroken_one(resume, ray, unbroken, tmp_path):
    from tests.distributed import ray_job

    found = launch(tmp_path, ray_job.train, failures=1, resume=resume, dies=True)
    assert (tmp_path / "killed").exists()
    run = tmp_path / ("run" if resume == "output_dir" else "second")
    events = [json.loads(line) for line in (run / "run.jsonl").read_text().splitlines()]
    assert [each["step"] for each in events if each["event"] == "resumed"] in ([10], [15])
    assert contents(run / "checkpoint-20") == contents(unbroken.last)
    assert found.ranks[0]["losses"] == unbroken.ranks[0]["losses"]


def test_ray_data_gives_each_worker_its_shard(ray, tmp_path):
    from tests.distributed import ray_job

    samples = [{"x": row["x"], "labels": number} for number, row in enumerate(rows(ray_job.SAMPLES))]
    datasets = {"train": ray.data.from_items(samples)}
    found = launch(tmp_path, ray_job.train_on_ray_data, datasets=datasets)
    assert [each["steps"] for each in found.ranks] == [8, 8]
    first, second = (each["given"] for each in found.ranks)
    assert len(first) == len(second) and sorted(first + second) == list(range(ray_job.SAMPLES))
