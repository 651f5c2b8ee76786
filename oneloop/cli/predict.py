"""`oneloop predict`: predict with a model that `oneloop train` has trained."""

import argparse

from ..recipes import prediction
from ..recipes.recipe import column_names


def command(options: argparse.Namespace) -> int:
    return prediction.run(
        options.directory,
        options.data,
        options.output,
        column_names(options.columns),
        options.bad_rows,
        options.batch_size,
        options.device,
    )
