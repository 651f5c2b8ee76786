"""What the toy refuses."""

from oneloop.arguments.refusal import Refusal


def _half(name):
    return Refusal(name, "True", lambda args: getattr(args, name), "the toy computes in float32", "leave it out")


REFUSALS = (
    _half("bf16"),
    _half("fp16"),
    Refusal("optim", "other than SGD", lambda args: args.optim != "sgd", "the toy has one optimizer", 'optim="sgd"'),
)
