"""MosaicML's MDS and litdata, which scripts/streams installs into an environment of their own."""

import importlib.util
import sys
import types

from tests.streams import formats


def _import_streaming():
    """The vision datasets of `streaming` are imported with it and need torchvision, whose wheel needs CUDA's libraries.
    Nothing here uses them: empty modules take its place during the import."""
    if "streaming" in sys.modules or importlib.util.find_spec("torchvision"):
        return
    import transformers  # asks whether there is a torchvision  # noqa: F401

    names = ["torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"]
    sys.modules |= {name: types.ModuleType(name) for name in names}
    sys.modules["torchvision.datasets"].VisionDataset = object
    sys.modules["torchvision.transforms.functional"].to_tensor = None
    import streaming  # noqa: F401

    for name in names:
        del sys.modules[name]


def mds(folder):
    _import_streaming()
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    from oneloop.distributed.world import world
    from tests.streams.job import BATCH

    local = folder / "mds"
    if not local.exists():
        columns = {"x": f"ndarray:float32:{formats.WIDTH}", "labels": "int", "number": "int"}
        with MDSWriter(out=str(local), columns=columns, size_limit=400) as writer:
            for number in range(formats.SAMPLES):
                writer.write(formats.row(number))
    if world().size == 1:  # what a killed run has left
        clean_stale_shared_memory()
    return StreamingDataset(
        local=str(local), shuffle=True, shuffle_seed=3, batch_size=BATCH // world().size, num_canonical_nodes=2
    )


def litdata(folder):
    import litdata

    from oneloop.distributed.world import world

    local = folder / "litdata"
    if not local.exists():
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(local), chunk_size=6)
        for number in range(formats.SAMPLES):
            writer.add_item(number, formats.row(number))
        writer.done()
        writer.merge()
    assert world().size
    return litdata.StreamingDataset(str(local), shuffle=True, seed=3, drop_last=False)
