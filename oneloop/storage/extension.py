"""Object storage as an extension: where output_dir is a URL, the output directory of a run is a mirrored one."""

from typing import TYPE_CHECKING

from ..extension import Extension

if TYPE_CHECKING:
    from ..trainer.run import Run
    from .mirrored_directory import MirroredDirectory


class ObjectStorage(Extension):
    """Keeps the runs of a Trainer whose output_dir is a URL in object storage."""

    def output_directory(self, run: "Run") -> "MirroredDirectory":
        from .mirrored_directory import MirroredDirectory  # quick imports: with the first Trainer, not with its class

        return MirroredDirectory(run)
