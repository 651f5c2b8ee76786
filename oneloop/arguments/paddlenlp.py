"""Properties that PaddleNLP scripts read: their place among the processes."""

from dataclasses import fields, is_dataclass
from typing import Any

from ..distributed.mesh import EXPERT, SEQUENCE, SHARD, TENSOR, Mesh, build
from ..distributed.world import world
from ..secrets import clean


class PaddleProperties:
    """Read-only, from the mesh of these arguments. Those that are arguments in PaddleNLP are in fixed.py."""

    pipeline_parallel_rank = 0
    optimizer_name_suffix = weight_name_suffix = None
    should_load_dataset = True
    should_save_sharding_stage1_model = should_load_sharding_stage1_model = False
    autotuner_benchmark = False

    @property
    def _mesh(self) -> Mesh:
        here = world()
        return build(self, here.rank, here.size)

    @property
    def context_parallel_degree(self) -> int:
        return self._mesh.size_of(SEQUENCE)

    @property
    def expert_parallel_degree(self) -> int:
        return self._mesh.size_of(EXPERT)

    @property
    def tensor_parallel_rank(self) -> int:
        return self._mesh.coordinate(TENSOR)

    @property
    def sharding_parallel_rank(self) -> int:
        return self._mesh.coordinate(SHARD)

    @property
    def data_parallel_rank(self) -> int:
        return self._mesh.batch_index

    @property
    def dataset_world_size(self) -> int:
        return self._mesh.num_batches

    @property
    def dataset_rank(self) -> int:
        return self._mesh.batch_index

    @property
    def logical_process_index(self) -> int:
        return world().rank

    @property
    def current_device(self) -> str:
        return str(self.device)  # type: ignore[attr-defined]

    @property
    def should_save_model_state(self) -> bool:
        return self.should_save  # type: ignore[attr-defined]

    def print_config(self, args: Any = None, key: str = "") -> None:
        """Print arguments as a table: these, or another dataclass or object under the heading `key`."""
        if not self.should_log:  # type: ignore[attr-defined]
            return
        shown = self.to_dict() if args is None else clean(_values(args))  # type: ignore[attr-defined]
        width = max(map(len, shown), default=0)
        print(f"***** {key or 'Training'} arguments *****")
        for name in sorted(shown):
            print(f"  {name:<{width}} = {shown[name]}")


def _values(args: Any) -> dict[str, Any]:
    if hasattr(args, "to_dict"):
        return args.to_dict()
    if is_dataclass(args):
        return {item.name: getattr(args, item.name) for item in fields(args)}
    return {name: value for name, value in vars(args).items() if not name.startswith("_")}
