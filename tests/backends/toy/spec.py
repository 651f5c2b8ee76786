"""What is known of the toy without importing it."""

from oneloop.backends.registry import BackendSpec

SPEC = BackendSpec(
    name="toy",
    module="tests.backends.toy.backend",
    title="Toy",
    framework="tests.backends.toy.framework",
    model_class="toy.Model",
    model_bases=("tests.backends.toy.framework.Model",),
    tensor_format="toy",
    unsupported="tests.backends.toy.unsupported:UNSUPPORTED",
)
