# SPDX-License-Identifier: Apache-2.0
# docs/integrations/opacus.md as it stands, beside Opacus's own step.
import copy

import pytest
import torch

from tests.integrations.pages import blocks

pytest.importorskip("opacus")


@pytest.mark.filterwarnings("ignore")
def test_the_page_is_true(capsys):
    """As many Poisson batches of one rate, some of them empty, whichever optimizer steps: the same history and eps."""
    (block,) = blocks("opacus.md")
    start, step, end = block.partition("    ldpkernels.dp_sgd_step(")
    theirs = f"{start}    optimizer.step()\n{end.partition(chr(10))[2]}"
    assert step
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    data = torch.utils.data.TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
    found, sizes = [], []
    for code in (block, theirs):
        model = copy.deepcopy(network)
        model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        loader = torch.utils.data.DataLoader(data, batch_size=1)
        names = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loader": loader}
        exec(code, names)
        found.append((names["engine"].accountant.history, capsys.readouterr().out))
        assert all(torch.isfinite(p).all() for p in model.parameters())
    assert found[0] == found[1]
    assert found[0][0] == [(1.0, 1 / 40, 40)]
    assert 0 in sizes
    assert max(sizes) > 1
