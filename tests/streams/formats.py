"""The same numbered samples in every format of streams, several files each."""

import io
import json
import tarfile

import numpy as np

FILES, EACH = 4, 12  # files, and samples in each
SAMPLES = FILES * EACH
WIDTH = 4


def row(number):
    """A sample: its number, features and a label."""
    x = np.random.RandomState(number).randn(WIDTH).astype(np.float32)
    return {"x": x, "labels": number % 2, "number": number}


def of_file(file):
    return [row(file * EACH + i) for i in range(EACH)]


def parquet(folder):
    import pyarrow
    import pyarrow.parquet

    paths = [folder / f"{file}.parquet" for file in range(FILES)]
    for file, path in enumerate(paths):
        rows = [sample | {"x": sample["x"].tolist()} for sample in of_file(file)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=5)
    return _loaded("parquet", paths)


def jsonl(folder):
    paths = [folder / f"{file}.jsonl" for file in range(FILES)]
    for file, path in enumerate(paths):
        path.write_text("".join(json.dumps(s | {"x": s["x"].tolist()}) + "\n" for s in of_file(file)))
    return _loaded("json", paths)


def _loaded(kind, paths):
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset(kind, data_files=[str(path) for path in paths], split="train", streaming=True)


def jsonl_shuffled(folder):
    return jsonl(folder).shuffle(seed=3, buffer_size=10)


def parquet_mapped(folder):
    return parquet(folder).map(lambda sample: sample | {"x": [2 * value for value in sample["x"]]})


def nodes(folder):
    """A shuffled order, a map in threads, and a state."""
    from torchdata.nodes import Loader, ParallelMapper, SamplerWrapper

    return Loader(ParallelMapper(SamplerWrapper(Shuffled()), row, num_workers=2, method="thread", in_order=True))


class Shuffled:
    """A sampler whose order depends on the epoch alone."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        return iter(np.random.RandomState(self.epoch).permutation(SAMPLES).tolist())


def tar_files(folder):
    paths = [folder / f"{file}.tar" for file in range(FILES)]
    for file, path in enumerate(paths):
        with tarfile.open(path, "w") as tar:
            for sample in of_file(file):
                text = json.dumps(sample | {"x": sample["x"].tolist()}).encode()
                info = tarfile.TarInfo(f"{sample['number']:04d}.json")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text))
    return [str(path) for path in paths]


def webdataset(folder, **given):
    import webdataset

    options = {"shardshuffle": 4, "detshuffle": True, "seed": 5, "empty_check": False} | given
    pipeline = webdataset.WebDataset(tar_files(folder), **options)
    return pipeline.compose(webdataset.detshuffle(10, seed=6)).decode().map(_of_tar)


def _of_tar(sample):
    return sample["json"]


def mixed(folder):
    """Two streams and a map-style dataset."""
    from oneloop import Mixture

    for name in ("a", "b"):
        (folder / name).mkdir(exist_ok=True)
    parts = {"a": parquet(folder / "a"), "b": jsonl(folder / "b"), "c": [row(100 + i) for i in range(8)]}
    return Mixture(parts, [(0, [2, 1, 1]), (6, [1, 2, 1])], stop=10**6)


def mixed_without_state(folder):
    from oneloop import Mixture

    for name in ("a", "b"):
        (folder / name).mkdir(exist_ok=True)
    return Mixture({"a": webdataset(folder / "a"), "b": jsonl_shuffled(folder / "b")}, [2, 1], stop="all_exhausted")


FORMATS = {
    made.__name__: made
    for made in (parquet, jsonl, jsonl_shuffled, parquet_mapped, nodes, webdataset, mixed, mixed_without_state)
}


def build(name, folder):
    from tests.streams import own_environment

    made = FORMATS.get(name) or getattr(own_environment, name)
    folder.mkdir(parents=True, exist_ok=True)
    return made(folder)
