# SPDX-License-Identifier: Apache-2.0
"""Generators of several parties that take their steps at once, against the same steps in turn."""

import json
import types

import pytest
import torch

import ldpkernels
from ldpkernels.__main__ import main
from ldpkernels.federated import data, dp_gan_together, generators, han_xue
from ldpkernels.federated.dp_gan import Recipe, Training
from tests.federated.test_han_xue import finish, tensors

pytestmark = pytest.mark.usefixtures("one_thread")
KEY = ldpkernels.key(7)
PARTIES = 3


@pytest.fixture
def in_fp64():
    """What is drawn, too: in fp32 Adam makes steps of different length of gradients that differ by rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def begun(kind, recipe):
    span = (0.0, 1.0)
    loss = recipe.discriminator_loss
    made = [generators.build(kind, (1, 8, 8), span, KEY.fold_in(i), loss=loss) for i in range(PARTIES)]
    return [Training(generator, recipe) for generator in made]


@pytest.mark.usefixtures("in_fp64")
@pytest.mark.parametrize("kind", generators.KINDS)
@pytest.mark.parametrize("sound", [False, True])
def test_all_that_a_step_changes_is_what_it_is_in_turn(kind, sound):
    recipe = Recipe(steps=20, batch=16, sound=sound, C=0.5)
    coins = generators.generator_of(KEY)
    examples = [torch.rand(40 + 10 * i, 1, 8, 8, generator=coins) for i in range(PARTIES)]  # of unequal parties
    keys = [KEY.fold_in(PARTIES + i) for i in range(PARTIES)]
    turn, once = begun(kind, recipe), begun(kind, recipe)
    for training, x, key in zip(turn, examples, keys, strict=True):
        for _ in range(8):
            training.step(x, key)
    for count in (5, 3):  # as after a checkpoint
        dp_gan_together.steps(list(zip(once, examples, keys, strict=True)), count)
    for mine, theirs in zip(once, turn, strict=True):
        ours, expected = mine.state_dict(), theirs.state_dict()
        assert mine.done == 8
        assert [o["param_groups"] for o in ours["optimizers"]] == [o["param_groups"] for o in expected["optimizers"]]
        pairs = list(zip(tensors(ours), tensors(expected), strict=True))
        assert len(pairs) > 20
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    moved = zip(
        tensors(once[0].state_dict()["maker"]), tensors(begun(kind, recipe)[0].state_dict()["maker"]), strict=True
    )
    assert not any(torch.equal(a, b) for a, b in moved)


def test_only_generators_of_one_kind_and_step_train_at_once():
    recipe, x = Recipe(steps=2, batch=4), torch.rand(8, 1, 8, 8)
    mixed = [begun("gan", recipe)[0], begun("vae", recipe)[1]]
    with pytest.raises(ValueError, match=r"a gan of .* and a vae of .*: those at once are of one kind"):
        dp_gan_together.steps([(training, x, KEY) for training in mixed], count=1)
    for other in ({"span": (-3.0, 5.0)}, {"loss": "log"}):
        odd = generators.build("gan", (1, 8, 8), **{"span": (0.0, 1.0), "key": KEY, **other})
        pair = [begun("gan", recipe)[0], Training(odd, recipe)]
        with pytest.raises(ValueError, match="different layers, spans or losses"):
            dp_gan_together.steps([(training, x, KEY) for training in pair], count=1)
    with pytest.raises(ValueError, match="parties is empty"):
        dp_gan_together.steps([], count=1)
    ahead = begun("gan", recipe)
    ahead[1].step(x, KEY)
    with pytest.raises(ValueError, match=r"after 0 steps and a gan of .* after 1 steps"):
        dp_gan_together.steps([(training, x, KEY) for training in ahead], count=1)


@pytest.mark.parametrize("sound", [False, True])
def test_a_world_whose_parties_train_at_once_ends_as_one_whose_parties_take_turns(sound, monkeypatch):
    config = han_xue.Config(
        parties=4, recipe=Recipe(steps=5, batch=16, sound=sound), generators=("gan", "vae"), samples=20, chunk=3,
        models=("tree", "logistic"), local_epochs=1, epochs=1, vote_sigma=0.5, baseline=False,
    )  # fmt: skip
    calls, steps = [], dp_gan_together.steps

    def counted(begun, count):
        calls.append((begun[0][0].generator.kind, len(begun), count))
        steps(begun, count)

    monkeypatch.setattr(dp_gan_together, "steps", counted)
    digits = data.load("digits")
    once, rows = finish(han_xue.World(digits, config, together=True))
    turn, expected = finish(han_xue.World(digits, config))
    assert calls == [("gan", 2, 3), ("vae", 2, 3), ("gan", 2, 2), ("vae", 2, 2)]
    assert [row["part"] for row in rows] == [row["part"] for row in expected]
    for mine, theirs in zip(once.makers, turn.makers, strict=True):
        for name, w in theirs.items():
            torch.testing.assert_close(mine[name], w, rtol=0.05, atol=5e-3)
    assert once.standalone == turn.standalone


def test_the_command_line_chooses(monkeypatch, capsys):
    calls, steps = [], dp_gan_together.steps

    def counted(begun, count):
        calls.append(len(begun))
        steps(begun, count)

    monkeypatch.setattr(dp_gan_together, "steps", counted)
    command = ["fl", "han-xue", "--parties", "2", "--steps", "2", "--batch", "8", "--generators", "vae"]
    command += ["--models", "tree", "--epochs", "1", "--no-baseline", "--workers", "1", "--quiet", "--json"]
    found = []
    for together in ([], ["--together", "no"], ["--together", "yes"]):
        assert main([*command, *together]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert calls == [2]  # the last alone
    assert "together" not in found[0]
    assert [run["together"] for run in found[1:]] == ["no", "yes"]
    assert len({tuple(run["standalone"]) for run in found}) == 1


def test_workers_and_parties_at_once_exclude_each_other():
    config = han_xue.Config(parties=2, recipe=Recipe(steps=1, batch=8), generators=("vae",), models=("tree",))
    world = han_xue.World(data.load("digits"), config, together=True)
    crew = types.SimpleNamespace(shared=world)
    with pytest.raises(ValueError, match="this world's train together: give one of the two"):
        han_xue.round_(han_xue.State(), world, workers=crew)
