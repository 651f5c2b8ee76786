"""PyTorch on a simulated accelerator, in place of the frameworks, in tests that run with ON_DEVICE=npu."""

from tests.backends.kits import torch_kit
from tests.device import simulated

simulated.register()  # before anything is differentiated: PyTorch makes a thread for each device then


class Kit(torch_kit.Kit):
    """The same models; the Trainer moves them to the device."""

    is_late = True

    def tensor(self, array):
        return super().tensor(array).to(simulated.NAME)


class Job(torch_kit.Job):
    """The framework's part of tests/checkpoint/job.py."""

    def weights(self, model):
        return {name: value.detach().cpu().numpy() for name, value in model.state_dict().items()}
