"""A program that ends while its last messages are still on their way, under torchrun."""

import torch.distributed as dist

from oneloop import TrainingArguments
from oneloop.backends.torch import parallel

processes = parallel.init_process_group(TrainingArguments("unused", device="cpu", report_to="none"))
group = dist.group.WORLD  # which a wrapped model holds too: then its threads live on
for _ in range(200):
    processes.all_gather_async([1.0] * 1000)
print(f"rank {processes.rank} done", flush=True)
