"""The properties of mindtorch that are known without importing it: `import mindnlp` replaces torch with it, on tensors
of MindSpore. It has no model class and no page of its own, but replaces both backends once it is imported."""

from ..registry import BackendSpec

SPEC = BackendSpec(
    name="mindtorch",
    module="oneloop.backends.mindtorch.backend",
    title="mindtorch",
    framework="mindtorch",
    model_class="torch.nn.Module",
    model_bases=("mindtorch.nn.modules.module.Module",),
    install="pip install mindnlp",
    tensor_format="pt",
    listed=False,
    active_when_imported="mindtorch",
    replaces=("torch", "mindspore"),
    unsupported_replacements={
        "mindspore": (
            "{model} is a mindspore.nn.Cell, and mindnlp is imported, which changes MindSpore's tensors. Train it in a "
            "process that does not import mindnlp, or write it as a torch.nn.Module."
        )
    },
    unsupported_modules={
        "mindnlp.core": (
            "{model} is a model of MindNLP 0.4, whose modules are neither MindSpore's nor mindtorch's. Use MindNLP "
            "0.5, where mindnlp.transformers has the same models, or write it as a mindspore.nn.Cell."
        )
    },
    unsupported="oneloop.backends.mindtorch.unsupported:UNSUPPORTED",
    inherits="torch",
    optimizer_layout="oneloop.backends.torch.optimizer_layout:LAYOUT",
)
