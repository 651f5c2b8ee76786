"""What the toy refuses."""

from oneloop.arguments.unsupported import UnsupportedValue


def _half(name):
    return UnsupportedValue(
        name, "True", lambda args: getattr(args, name), "the toy computes in float32", "leave it out"
    )


UNSUPPORTED = (
    _half("bf16"),
    _half("fp16"),
    UnsupportedValue(
        "optim", "other than SGD", lambda args: args.optim != "sgd", "the toy has one optimizer", 'optim="sgd"'
    ),
)
