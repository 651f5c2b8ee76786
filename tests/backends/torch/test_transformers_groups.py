"""Parameter groups of optimizer.pt, as transformers' Trainer writes them."""

import pytest
import torch

from oneloop.backends.torch.external_checkpoint import load_optimizer


def trained(model, groups):
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("stored", [[0.3, 0.7], [0.3]], ids=["two groups", "one group"])
def test_a_group_without_parameters(stored, tmp_path):
    """As with LoRA, whose weights all decay: the other group is empty, or was left out."""
    model = torch.nn.Linear(2, 3, bias=False)
    parts = [{"params": list(model.parameters()) if i == 0 else [], "weight_decay": d} for i, d in enumerate(stored)]
    old = trained(model, parts)
    torch.save(old.state_dict(), tmp_path / "optimizer.pt")
    ours = torch.optim.AdamW([{"params": list(model.parameters()), "weight_decay": 0.1}, {"params": []}], lr=0.5)
    loaded = load_optimizer(ours, model, tmp_path)
    assert loaded.sources == [{0}, {1} if len(stored) == 2 else set()]
    theirs = old.state[model.weight]
    for name, value in ours.state[model.weight].items():
        assert torch.equal(value, theirs[name])
    assert ours.param_groups[0]["lr"] == 0.1 and ours.param_groups[1]["params"] == []
