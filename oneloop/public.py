"""The classes that users import from oneloop: those of the core, with everything that stands on top of it."""

from . import trainer
from .arguments import CompressionArguments, Seq2SeqTrainingArguments, TrainingArguments
from .compat import extensions
from .compat.paddlenlp import PaddleNLPNames
from .compat.transformers import TransformersNames
from .extension import register
from .integrations.hub.methods import HubMethods
from .integrations.hub.pushing import HubPushes
from .integrations.search.methods import SearchMethods
from .integrations.search.state import SearchState
from .integrations.writers.extension import WriterCallbacks
from .plan.methods import PlanMethods
from .plan.request import PlanRequests
from .storage.run_storage import ObjectStorage

__all__ = ["CompressionArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments", "Trainer", "TrainingArguments"]


class Trainer(HubMethods, SearchMethods, PlanMethods, TransformersNames, PaddleNLPNames, trainer.Trainer):
    __doc__ = trainer.Trainer.__doc__


class Seq2SeqTrainer(trainer.Seq2SeqTrainer, Trainer):
    __doc__ = trainer.Seq2SeqTrainer.__doc__


extensions.install()
register(HubPushes, SearchState, WriterCallbacks, PlanRequests, ObjectStorage)
