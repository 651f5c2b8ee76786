"""The classes that users import from oneloop: those of the core, with everything that stands on top of it."""

from . import trainer
from .arguments import CompressionArguments, Seq2SeqTrainingArguments, TrainingArguments
from .compat import extensions
from .compat.paddlenlp import PaddleNLPNames
from .compat.transformers import TransformersNames
from .extension import register
from .integrations.hub.methods import HubMethods
from .integrations.hub.pushing import HubPushes
from .integrations.search.best import BestTrials
from .integrations.search.methods import SearchMethods
from .integrations.search.state import SearchState
from .integrations.writers.extension import WriterCallbacks
from .plan.methods import PlanMethods
from .plan.request import PlanRequests
from .storage.extension import ObjectStorage
from .trainer.generic import Args_co

__all__ = ["CompressionArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments", "Trainer", "TrainingArguments"]


class Trainer(
    HubMethods[Args_co],
    SearchMethods[Args_co],
    PlanMethods[Args_co],
    TransformersNames[Args_co],
    PaddleNLPNames[Args_co],
    trainer.Trainer[Args_co],
):
    __doc__ = trainer.Trainer.__doc__


class Seq2SeqTrainer(trainer.Seq2SeqTrainer[Args_co], Trainer[Args_co]):
    __doc__ = trainer.Seq2SeqTrainer.__doc__


extensions.install()
register(HubPushes, SearchState, BestTrials, WriterCallbacks, PlanRequests, ObjectStorage)
