from oneloop.backends._common import helpers
from oneloop.errors import UnsupportedError

HALF_LEVELS = ("O0",)
NEAREST_HALF = "half precision; float32"


def unwrap(model):
    return model


def is_adapter(model):
    return False


def base_of(model):
    return model


def tensor_parallel_size(model):
    return 1


def config_of(model):
    return getattr(model, "config", None)


def forward_of(model):
    return model.forward


def forward_parameters(model):
    return helpers.parameter_names(model.forward)


def label_names(model):
    return helpers.label_names(forward_parameters(model))


def shifts_labels(model):
    return False


def guess_label_shift(model):
    return False


def counts_ignored(criterion):
    return False


def train_mode(model, every_layer=False):
    model.training = True


def layers_in_eval(model):
    return []


def eval_mode(model):
    was, model.training = model.training, False
    return [model] if was else []


def restore_mode(training):
    for model in training:
        model.training = True


def invoke(model, inputs):
    return helpers.call(model, inputs)


def named_parameters(model):
    return list(model.parameters().items())


def num_parameters(model, trainable=False):
    return sum(p.array.size for p in model.parameters().values())


def embedding_rows(model):
    return {}


def num_matrix_parameters(model):
    return num_parameters(model)


def decay_names(model):
    return [name for name in model.parameters() if name != "bias"]


def _refused(*args, **kwargs):
    raise UnsupportedError("the toy cannot do that")


recompute = add_embedding_noise = compiled = check_compiler = to_half = with_master_weights = _refused


def buffers(model):
    return []


def copy_values(model):
    return [p.array.copy() for p in model.parameters().values()]


def restore_values(model, values):
    for p, value in zip(model.parameters().values(), values, strict=True):
        p.array = value
