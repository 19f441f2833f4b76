# SPDX-License-Identifier: Apache-2.0
"""Han and Xue's pipeline on the digits, and its parts."""

import dataclasses
import math
import types

import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels.accounting import sampled_gaussian
from ldpkernels.federated import data, generators, han_xue, han_xue_privacy, parties, runs
from ldpkernels.federated.dp_gan import Recipe, Training, chosen, critic_gradient, gradients
from ldpkernels.federated.generators import generator_of
from tests.federated.test_federated_data import lay_files

KEY = ldpkernels.key(5)
TINY = Recipe(steps=6, batch=32)


def quick(recipe=TINY, **changes):
    values = {"parties": 3, "recipe": recipe, "models": ("tree", "logistic", "network"), "chunk": 4, "epochs": 2}
    return han_xue.Config(**{**values, **changes})


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


def finish(world, state=None):
    return runs.run(
        lambda state: han_xue.round_(state, world),
        state or han_xue.State(),
        han_xue.rounds(world.config),
        progress=False,
    )


def tensors(value):
    """All tensors within, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for key in sorted(value, key=str) for t in tensors(value[key])]
    return [t for v in value for t in tensors(v)] if isinstance(value, list | tuple) else []


def same(a, b):
    left, right = (tensors([getattr(s, f.name) for f in dataclasses.fields(s)]) for s in (a, b))
    return len(left) == len(right) and all(torch.equal(x, y) for x, y in zip(left, right, strict=True))


@pytest.mark.filterwarnings("ignore")  # scikit-learn's of a regression that did not converge in its time
def test_end_to_end(digits):
    """Enough steps to learn something; ten classes. Measured: 0.68 of the global model, 0.91 of the baseline."""
    recipe = Recipe(steps=250, batch=16, lr=2e-3)
    models = ("logistic", "svm", "forest")
    world = han_xue.World(digits, quick(recipe, models=models, generators=("gan",), epochs=12, chunk=250))
    state, rows = finish(world)
    assert len(rows) == han_xue.rounds(world.config) == 5
    assert state.baseline > 0.85
    assert sum(state.standalone) / 3 > 0.8
    assert state.accuracy > 0.4
    assert [row["part"] for row in rows[:2]] == ["3 generators: 250 steps", "3 local models, on average"]
    assert rows[1]["accuracy"] == sum(state.standalone) / 3
    samples = world.samples(state)
    assert samples.shape == (3 * world.examples, 1, 8, 8)
    assert 0 <= float(samples.min()) <= float(samples.max()) <= 1
    vote = ldpkernels.majority_vote(torch.stack(list(state.votes)), 10)
    assert torch.equal(vote.labels, state.labels)
    assert torch.equal(vote.keep, state.keep)
    assert 0.1 < float(state.keep.float().mean()) < 1


def test_the_global_model_is_of_the_kind_that_is_asked_for(digits, monkeypatch):
    built, build = [], parties.build

    def spy(kind, *arguments, **options):
        built.append(kind)
        return build(kind, *arguments, **options)

    monkeypatch.setattr(parties, "build", spy)
    config = quick(Recipe(steps=1, batch=8), models=("tree",), global_model="cnn-1-wide", vote_sigma=0.1, chunk=1)
    world = han_xue.World(digits, config)
    built.clear()
    finish(world)
    assert built == ["tree"] * 3 + ["cnn-1-wide"] * 2  # the global model and the baseline


def test_wide_networks_have_twice_the_channels_and_the_hidden_layer():
    for kind in parties.IMAGES:
        usual, wide = (
            [
                m
                for m in parties.build(k, (1, 28, 28), 10, KEY).module
                if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)
            ]
            for k in (kind, f"{kind}-wide")
        )
        assert [m.weight.shape[0] * 2 for m in usual[:-1]] == [m.weight.shape[0] for m in wide[:-1]]
        assert wide[-1].weight.shape[0] == 10


def test_the_seed_decides_all(digits):
    configs = [quick(seed=seed, baseline=False, vote_sigma=1.0) for seed in (0, 0, 1)]
    states = [finish(han_xue.World(digits, config))[0] for config in configs]
    assert same(states[0], states[1])
    assert not same(states[0], states[2])


def test_the_noise_of_the_papers_loss_never_reaches_the_weights(digits):
    """The finding: every sigma gives the same generators, so that the paper's table 2 shows nothing of its noise."""
    x = digits.train_x[:200]
    found = {}
    for kind in generators.KINDS:
        for sigma in (0.0, 1.0, 1e6):
            recipe = dataclasses.replace(TINY, sigma=sigma)
            training = Training(generators.build(kind, (1, 8, 8), (0.0, 1.0), KEY), recipe)
            for _ in range(3):
                training.step(x, KEY)
            found[kind, sigma] = tensors(training.state_dict())
        for sigma in (1.0, 1e6):
            assert all(torch.equal(a, b) for a, b in zip(found[kind, 0.0], found[kind, sigma], strict=True))


@pytest.mark.parametrize("kind", generators.KINDS)
def test_the_noise_of_the_sound_step_does(digits, kind):
    """Its deviation in the gradient is C sigma / batch, halved where there is a synthetic branch beside the real."""
    x = digits.train_x[:64]
    found = []
    for sigma in (0.0, 5.0):
        generator = generators.build(kind, (1, 8, 8), (0.0, 1.0), KEY, loss="log")
        recipe = Recipe(1, 64, C=0.5, sigma=sigma, sound=True)
        critic_gradient(generator, x, recipe, generator_of(KEY), KEY)
        found.append(torch.cat([p.grad.flatten() for p in generator.critic.parameters()]))
    noise = (found[1] - found[0]).double()
    expected = 0.5 * 5.0 / 64 / (2 if generator.adversarial else 1)
    spread = math.sqrt(2 / len(noise))  # of a squared normal's mean
    assert abs(float(noise.square().mean()) / expected**2 - 1) < 6 * spread


@pytest.mark.parametrize("kind", generators.KINDS)
def test_one_example_moves_the_real_branch_by_its_bound_at_most(digits, kind):
    critic = generators.build(kind, (1, 8, 8), (0.0, 1.0), KEY, loss="log").critic
    x, noise = digits.train_x[:33].clone(), torch.randn(33, 16, generator=generator_of(KEY))
    x[32] = 3.0  # an outlier, of pixels up to 1
    found = []
    for n in (32, 33):
        grads = gradients(critic, x[:n], noise[:n])
        ldpkernels.dp_sgd_step(critic, None, 0.1, 0.0, batch_size=32, grads=grads)
        found.append(torch.cat([p.grad.flatten() for p in critic.parameters()]))
    moved = float((found[1] - found[0]).norm())
    assert 0.5 * 0.1 / 32 < moved <= 0.1 / 32 * (1 + 1e-4)


def test_gradients_by_example_add_up_to_that_of_the_batch(digits):
    for kind in generators.KINDS:
        critic = generators.build(kind, (1, 8, 8), (0.0, 1.0), KEY).critic
        x, noise = digits.train_x[:7], torch.randn(7, 16, generator=generator_of(KEY))
        by_example = gradients(critic, x, noise)
        critic.zero_grad()
        critic(x, noise).sum().backward()
        for name, p in critic.named_parameters():
            torch.testing.assert_close(by_example[name].sum(0), p.grad, rtol=1e-4, atol=1e-5)
    assert all(len(g) == 0 for g in gradients(critic, x[:0], noise[:0]).values())


def test_examples_above_the_bound_have_no_gradient_in_the_papers_loss(digits):
    """Why the loss of equation (4) stalls at C = 1: who is wrong about the real learns nothing of it."""
    generator = generators.build("gan", (1, 8, 8), (0.0, 1.0), KEY, loss="log")
    with torch.no_grad():
        generator.critic.logit[-1].bias.fill_(-20.0)  # it takes the real for synthetic: each loss is 20
    critic_gradient(generator, digits.train_x[:32], TINY, generator_of(KEY), KEY)
    assert all(float(p.grad.abs().max()) < 1e-7 for p in generator.critic.parameters())
    sound = dataclasses.replace(TINY, sound=True, sigma=0.0)
    critic_gradient(generator, digits.train_x[:32], sound, generator_of(KEY), KEY)
    assert float(generator.critic.logit[-1].bias.grad.abs()) > 0.01


def test_squares_stay_below_the_bound(digits):
    critic = generators.build("gan", (1, 8, 8), (0.0, 1.0), KEY).critic
    with torch.no_grad():
        critic.logit[-1].bias.fill_(-20.0)
        assert 0.99 < float(critic(digits.train_x[:32], torch.empty(0)).max()) <= 1


def test_batches_are_fixed_or_poisson():
    sizes = {sound: [] for sound in (False, True)}
    for sound, found in sizes.items():
        for i in range(300):
            part = chosen(500, Recipe(1, 50, sound=sound), generator_of(KEY.fold_in(i)))
            assert len(part.unique()) == len(part)
            found.append(len(part))
    assert set(sizes[False]) == {50}
    deviation = math.sqrt(500 * 0.1 * 0.9)
    assert abs(np.mean(sizes[True]) - 50) < 6 * deviation / math.sqrt(300)
    assert 0.7 < np.std(sizes[True]) / deviation < 1.3


@pytest.mark.parametrize(("batch", "examples"), [(256, 7_814), (2, 3), (1, 60_000), (7, 7)])
def test_the_rate_that_is_accounted_is_the_one_that_is_drawn(batch, examples):
    """Draws are multiples of 2^-24: of all of them, as many are below the rate as it says."""
    draws = torch.arange(2**24) / 2**24
    found = torch.rand(100_000, generator=generator_of(KEY)) * 2**24
    assert torch.equal(found, found.round())
    recipe = Recipe(1, batch, sound=True)
    rate = recipe.rate(examples)
    assert int((draws < rate).sum()) == rate * 2**24
    assert abs(rate - batch / examples) < 2**-23
    config = han_xue.Config(recipe=recipe)
    accounted = sampled_gaussian(1.0, rate, 1, delta=1e-5).epsilon
    assert han_xue_privacy.report(config, examples, 10)[0].result.epsilon == accounted


def test_any_model_will_do(digits):
    class Constant:
        def __init__(self, label):
            self.label = label

        def fit(self, x, y):
            assert x.shape[1] == 64
            assert len(x) == len(y)

        def predict(self, x):
            return np.full(len(x), self.label)

    world = han_xue.World(digits, quick(baseline=False), [Constant(3), Constant(3), Constant(3)])
    state, _ = finish(world)
    assert set(state.labels.tolist()) == {3}
    assert bool(state.keep.all())
    assert 0.05 < state.accuracy < 0.2
    # An adversary of three parties can have every sample dropped, and no more.
    world = han_xue.World(digits, quick(baseline=False), [Constant(3), Constant(3), Constant(4)])
    with pytest.raises(ValueError, match="no sample was kept"):
        finish(world)


def test_a_state_in_the_middle_of_a_turn_is_refused(digits):
    """Checkpoints of versions in which each party had rounds of its own have such states."""
    world = han_xue.World(digits, quick())
    state, _ = han_xue.round_(han_xue.State(), world)
    further = [{**state.training[0], "done": 6}, *state.training[1:]]
    for other in ({"training": state.training[:1]}, {"makers": [{}]}, {"training": further}):
        with pytest.raises(ValueError, match="does not hold a turn of all 3 parties: start the run again"):
            han_xue.round_(dataclasses.replace(state, **other), world)


def test_queries_are_a_part_of_the_samples(digits):
    config = quick(queries=40, samples=30, baseline=False, vote_sigma=1.0)
    world = han_xue.World(digits, config)
    state, _ = finish(world)
    every = han_xue.World(digits, dataclasses.replace(config, queries=None)).samples(state)
    labelled = world.samples(state)
    assert (len(every), len(labelled), len(state.labels)) == (90, 40, 40)
    assert all(bool((every == sample).flatten(1).all(1).any()) for sample in labelled)


def test_samples_are_those_of_the_state_that_is_asked_for(digits):
    world = han_xue.World(digits, quick())
    makers = [world.generator(i).maker.state_dict() for i in range(3)]
    silent = [{name: torch.zeros_like(w) for name, w in maker.items()} for maker in makers]
    first, second = han_xue.State(makers=makers), han_xue.State(makers=silent)
    made = world.samples(first)
    assert float(world.samples(second).std()) < float(made.std())
    assert torch.equal(world.samples(first), made)


def test_bad_settings_are_refused_before_any_work(digits):
    for message, config in (
        ("batch=5000 is more than the 539 examples", lambda: quick(Recipe(1, 5000))),
        ("generator='x' must be one of", lambda: quick(generators=("x",))),
        ("model='x' must be one of", lambda: quick(models=("tree", "x"))),
        ("parties=1: a single vote", lambda: quick(parties=1)),
        ("clients=5000 must be from 1 to 1617", lambda: quick(parties=5000)),
        ("vote_sigma=-1", lambda: quick(vote_sigma=-1)),
        ("queries=0 must be 1 or more", lambda: quick(queries=0)),
        ("C=0 must be above 0", lambda: quick(Recipe(C=0))),
        ("sigma=-1 must be 0 or more", lambda: quick(Recipe(sigma=-1))),
        ("steps=0 must be 1 or more", lambda: quick(Recipe(steps=0))),
        ("loss='x' must be one of", lambda: quick(Recipe(1, 32, loss="x"))),
    ):
        with pytest.raises(ValueError, match=message):
            han_xue.World(digits, config())
    with pytest.raises(ValueError, match="2 models for parties=3"):
        han_xue.World(digits, quick(), [parties.build("tree", (64,), 10, KEY)] * 2)
    with pytest.raises(ValueError, match=r"span=\(0.5, 0.5\) must be two numbers, the lower first"):
        generators.build("gan", (1, 8, 8), (0.5, 0.5), KEY)
    with pytest.raises(ValueError, match="square images with a side divisible by 4"):
        generators.build("dcgan", (88,), None, KEY)
    with pytest.raises(ValueError, match=r"images \[channels, height, width\] of 8 or more"):
        parties.build("cnn-5", (1, 4, 4), 10, KEY)


def test_workers_and_a_gpu_exclude_each_other(digits):
    world = han_xue.World(digits, quick(), device="cuda")
    crew = types.SimpleNamespace(shared=world)
    with pytest.raises(ValueError, match="workers train on the CPU, and this world is on 'cuda'"):
        han_xue.round_(han_xue.State(), world, workers=crew)


def test_the_report_tells_what_is_protected():
    paper = han_xue_privacy.report(han_xue.Config(), 7814, 39070)
    assert [part.protected for part in paper[:3]] == [False, False, False]
    assert round(paper[0].claimed, 4) == 7.0306  # the paper's own figure for Adult
    assert "NOT PROTECTED" in str(paper[0])
    half = han_xue_privacy.report(han_xue.Config(recipe=Recipe(sound=True)), 7814, 39070)
    assert [part.protected for part in half[:3]] == [True, False, False]
    assert round(half[0].result.epsilon, 2) == 6.77
    sound = han_xue_privacy.report(han_xue.Config(recipe=Recipe(sound=True), vote_sigma=300.0), 7814, 39070)
    assert sound[2].result.epsilon == sound[0].result.epsilon + sound[1].result.epsilon
    assert sound[2].result.delta == 2e-5
    silent = han_xue_privacy.report(han_xue.Config(recipe=Recipe(sound=True, sigma=0.0), vote_sigma=0.0), 7814, 10)
    assert [part.protected for part in silent[:3]] == [False, False, False]
    known = "All of these, where the seed is known: NOT PROTECTED. A simulation: all noise"
    assert [[str(part).startswith(known) for part in one].count(True) for one in (paper, half, sound)] == [0, 1, 1]


def test_the_command_runs_resumes_and_draws(tmp_path, capsys):
    from ldpkernels.__main__ import main

    lay_files(tmp_path)
    folder = tmp_path / "run"
    arguments = ["fl", "han-xue", "--dataset", "adult", "--data", str(tmp_path), "--parties", "3", "--steps", "4"]
    arguments += ["--batch", "16", "--models", "tree", "--generators", "vae", "gan", "--out", str(folder), "--sound"]
    arguments += ["--workers", "1"]
    assert main([*arguments, "--vote-sigma", "9"]) == 0
    out = capsys.readouterr()
    assert "han-xue" in out.err  # progress
    assert "What is protected" in out.out
    assert "GNMax" in (folder / "privacy.txt").read_text()
    assert (folder / "samples.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match=r"checkpoint\.pt exists"):
        main([*arguments, "--vote-sigma", "9", "--quiet"])
    assert main([*arguments, "--vote-sigma", "9", "--resume", "--quiet"]) == 0
    table = capsys.readouterr().out
    assert table[table.index("baseline") :] == out.out[out.out.index("baseline") :]
    with pytest.raises(SystemExit, match="belongs to another run"):
        main([*arguments, "--vote-sigma", "8", "--resume"])


@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 4, 4), (1, 8, 8), (3, 8, 8)])
def test_examples_of_any_shape_are_drawn(tmp_path, monkeypatch, shape):
    from ldpkernels.commands import han_xue_run
    from ldpkernels.federated import own

    y = torch.arange(60) % 2
    mine = own.dataset((torch.rand(60, *shape), y, torch.rand(10, *shape), y[:10]))
    config = han_xue.Config(
        2, Recipe(steps=1, batch=4), ("vae",), ("tree",), epochs=1, baseline=False, global_model="tree"
    )
    world, state = han_xue.World(mine, config), han_xue.State()
    while len(state.makers) < 2:
        state, _ = han_xue.round_(state, world)
    han_xue_run.draw(tmp_path / "samples.png", world, state)
    assert (tmp_path / "samples.png").stat().st_size > 3_000
    while state.labels is None:
        state, _ = han_xue.round_(state, world)
    drawn = []
    monkeypatch.setattr(han_xue_run, "save", lambda figure, path: drawn.extend(figure.axes))
    han_xue_run.draw(tmp_path / "samples.png", world, state)
    if len(shape) < 3 or shape[0] == 2:  # features: as many of each class
        assert [tick.get_text() for tick in drawn[0].get_yticklabels()] == ["class 0", "class 1"]
        assert drawn[0].images[0].get_array().shape == (16, math.prod(shape))
