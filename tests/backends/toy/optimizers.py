from oneloop.backends._common.helpers import optimizer_options
from oneloop.errors import UnsupportedError
from oneloop.optim.scheduler import scheduler_class as scheduler_class

from .framework import SGD

TWO_GROUPS = False


def is_optimizer(value):
    return isinstance(value, SGD)


def class_and_options(args, model=None):
    return SGD, {"lr": args.learning_rate, **optimizer_options(args.optim_args)}


def build(cls, groups, options):
    return cls(groups, **options)


def groups(optimizer):
    return optimizer.param_groups


def learning_rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def set_learning_rates(optimizer, rates):
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def attached_schedule(optimizer):
    return None


def make_standalone_schedule(rate, factor):
    raise UnsupportedError("a schedule of the toy needs an optimizer")


def attach(optimizer, scheduler):
    pass


def group_of(optimizer, parameter):
    if parameter is None:
        return [group["params"] for group in optimizer.param_groups]
    return next(group for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
