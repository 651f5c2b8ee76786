"""Methods that only PaddleNLP's Trainer has."""

from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import RefusedError

if TYPE_CHECKING:
    from ..trainer import Trainer as Base
else:
    Base = object


class PaddleNLPNames(Base):
    """Thin wrappers around oneloop's methods."""

    def export_model(self, input_spec: Any = None, load_best_model: bool = False, output_dir: Any = None) -> list[str]:
        """export() with PaddleNLP's arguments; load_best_model first loads the weights of the best checkpoint."""
        if load_best_model and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        return self.export(output_dir, input_spec)

    def print_config(self, args: Any = None, key: str = "") -> None:
        """Print the arguments."""
        self.args.print_config(args, key)

    def set_optimizer_grouped_parameters(self, optimizer_grouped_parameters: Any = None) -> NoReturn:
        """Refused, with what to use instead."""
        raise RefusedError(
            "set_optimizer_grouped_parameters is not supported: create the optimizer with your parameter groups and "
            "pass it as optimizers=(optimizer, None), or override create_optimizer. PaddleNLP has this method."
        )

    def compress(self, custom_evaluate: Any = None) -> NoReturn:
        """Refused, with what to use instead."""
        raise RefusedError(
            "compress (pruning and quantization with PaddleSlim) is not part of oneloop: train here, then compress the "
            "saved model with PaddleNLP."
        )
