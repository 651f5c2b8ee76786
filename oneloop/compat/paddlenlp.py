"""Methods that only PaddleNLP's Trainer has."""

from typing import TYPE_CHECKING, NoReturn

from ..errors import UnsupportedError
from ..protocols import PathLike
from ..trainer.generic import Args_co, TrainerBase

if TYPE_CHECKING:
    from ..arguments import TrainingArguments
    from ..trainer import Trainer as Base
else:
    Base = TrainerBase


class PaddleNLPNames(Base[Args_co]):
    """Thin wrappers around oneloop's methods."""

    def export_model(
        self, input_spec: object = None, load_best_model: bool = False, output_dir: str | PathLike | None = None
    ) -> list[str]:
        """export() with PaddleNLP's arguments; load_best_model first loads the weights of the best checkpoint."""
        if load_best_model and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        return self.export(output_dir, input_spec)

    def print_config(self, args: "TrainingArguments | None" = None, key: str = "") -> None:
        """Print the arguments."""
        self.args.print_config(args, key)

    def set_optimizer_grouped_parameters(self, optimizer_grouped_parameters: object = None) -> NoReturn:
        """Refused, with what to use instead."""
        raise UnsupportedError(
            "set_optimizer_grouped_parameters is not supported: create the optimizer with your parameter groups and "
            "pass it as optimizers=(optimizer, None), or override create_optimizer. PaddleNLP has this method."
        )

    def compress(self, custom_evaluate: object = None) -> NoReturn:
        """Refused, with what to use instead."""
        raise UnsupportedError(
            "compress (pruning and quantization with PaddleSlim) is not part of oneloop: train here, then compress the "
            "saved model with PaddleNLP."
        )
