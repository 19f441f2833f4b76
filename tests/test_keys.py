# SPDX-License-Identifier: Apache-2.0
# Where keys come from: reproducible where that is asked for, never shared where it is not.
import collections
import concurrent.futures
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import ldpkernels
from ldpkernels import Key, _native, key, perturb_, secure_key
from ldpkernels.keys import numpy_key, torch_key

CPU = torch.device("cpu")


def run_python(script):
    """A fresh interpreter's output."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def perturbed(generator=None, library="torch"):
    x = torch.zeros(256) if library == "torch" else np.zeros(256)
    return bytes((perturb_(x, 0.0, 1.0, 1.0, generator=generator) > 0).tolist())


def test_manual_seed_reproduces_and_seed_0_is_a_seed():
    found = {}
    for seed in (0, 1, 2**63 - 1):
        torch.manual_seed(seed)
        first, second = perturbed(), perturbed()
        torch.manual_seed(seed)
        assert (perturbed(), perturbed()) == (first, second)
        assert first != second
        found[seed] = first
    assert len(set(found.values())) == 3
    state = torch.random.get_rng_state()
    third = perturbed()
    torch.random.set_rng_state(state)
    assert perturbed() == third


def test_generators_of_the_callers_own():
    one, two = (torch.Generator().manual_seed(0) for _ in range(2))
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    a, b = perturbed(one), perturbed(one)
    assert (a, b) == (perturbed(two), perturbed(two))
    assert a != b
    assert torch.equal(torch.random.get_rng_state(), state), "the default generator moved"
    one, two = np.random.default_rng(0), np.random.default_rng(0)
    a, b = perturbed(one, "numpy"), perturbed(one, "numpy")
    assert (a, b) == (perturbed(two, "numpy"), perturbed(two, "numpy"))
    assert a != b


def test_an_explicit_key_is_the_same_everywhere():
    for k in (key(0), key(-1), secure_key()):
        bits = perturbed(k)
        assert bits == perturbed(k) == perturbed(k, "numpy") == perturbed(k.tensor())
    assert key(-1) == key(2**64 - 1)
    assert perturbed(key(0)) != perturbed(key(1))


def test_arrays_without_a_generator_draw_from_the_operating_system():
    np.random.seed(0)  # noqa: NPY002  the global state must not matter
    torch.manual_seed(0)
    first = perturbed(library="numpy")
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    assert perturbed(library="numpy") != first
    assert len(numpy_key(None).words) == 4


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_secure_differs_each_time_whatever_the_seed(library):
    seen = set()
    for _ in range(20):
        torch.manual_seed(0)
        seen.add(perturbed("secure", library))
    assert len(seen) == 20


def test_secure_is_chacha20():
    assert len(secure_key().words) == 4
    assert repr(secure_key()) == "Key(chacha20)"
    assert torch_key("secure", CPU).shape == (4,)
    assert len(numpy_key("secure").words) == 4
    words = np.array([secure_key().words for _ in range(200)], np.uint64)
    ones = np.unpackbits(words.view(np.uint8), axis=1).mean(axis=0)
    assert ((ones > 0.2) & (ones < 0.8)).all(), "a bit of secure keys hardly moves (chance 1e-15)"


def test_no_text_shows_a_key():
    secret = 0xFEEDFACECAFEBEEF
    for k in (key(secret), Key((secret,) * 4)):
        assert str(secret) not in f"{k} {k!r} {[k]}"
    with pytest.raises(ValueError, match="1 or 4 words") as error:
        Key((secret, secret))
    assert str(secret) not in str(error.value)
    with pytest.raises(ValueError, match="1 or 4 words"):
        Key((2**64,))


def test_seeds_are_whole_numbers_of_64_bits():
    assert key(np.int64(3)) == key(3) == key(torch.tensor(3))
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match="64 bits"):
            key(seed)
    for seed in (1.5, "7", None):
        with pytest.raises(TypeError):
            key(seed)
    with pytest.raises(ValueError, match="i=-1"):
        key(0).fold_in(-1)
    with pytest.raises(TypeError):
        key(0).fold_in(0.5)


def test_a_key_tensor_holds_the_words():
    k = Key((2**64 - 1, 1, 2**63, 5))
    assert k.tensor().tolist() == [-1, 1, -(2**63), 5]
    assert k.uint32().tolist() == [2**32 - 1, 2**32 - 1, 1, 0, 0, 2**31, 5, 0]
    assert pickle.loads(pickle.dumps(k)) == k


def test_folded_keys_are_distinct_and_follow_the_specification():
    for k in (key(3), Key((1, 2, 3, 4))):
        children = [k.fold_in(i) for i in [*range(2000), 2**32, 2**32 + 1, 2**64 - 1]]
        assert len({*children, k, *(c.fold_in(0) for c in children[:10])}) == len(children) + 11
        assert {len(c.words) for c in children} == {len(k.words)}
        counter = np.array([1, 1, 0, 1], np.uint32)  # block 2^32 + 1 of keystream 0 in domain 1
        block = _native.cipher_block(k.uint32(), counter)[: 2 * len(k.words)]
        assert k.fold_in(2**32 + 1).uint32().tolist() == block.tolist()


def test_folded_keys_are_the_same_in_every_process():
    script = "import ldpkernels as l; print(*l.key(7).fold_in(9).words, *l.Key((1, 2, 3, 4)).fold_in(2**40).words)"
    found = run_python(script)
    assert found == run_python(script)
    assert [int(w) for w in found] == [*key(7).fold_in(9).words, *Key((1, 2, 3, 4)).fold_in(2**40).words]


FORK = """
import os, sys, torch
from ldpkernels.keys import torch_key
cpu = torch.device("cpu")
torch.manual_seed(3)
torch_key(None, cpu)
def draw(tag, n=2):
    print(tag, *(torch_key(None, cpu).item() for _ in range(n)), sep="=", flush=True)
def child(tag, reseed=None):
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    if reseed is not None:
        torch.manual_seed(reseed)
    draw(tag)
    if tag == "nested":
        if not os.fork():
            draw("grandchild")
        else:
            os.wait()
    os._exit(0)
child("one"); child("two"); child("nested"); child("seeded", 99); child("again", 99)
draw("parent")
torch.manual_seed(99)
draw("expected")
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork on this system")
def test_forked_processes_never_share_a_stream_unless_they_are_seeded():
    drawn = {tag: keys for tag, *keys in (line.split("=") for line in run_python(FORK))}
    unseeded = [drawn[tag] for tag in ("one", "two", "nested", "grandchild", "parent")]
    assert len({k for keys in unseeded for k in keys}) == 10, "two processes drew one key"
    assert drawn["seeded"] == drawn["again"] == drawn["expected"], "a seed set in the child was not honoured"


def test_the_parent_draws_as_if_it_had_not_forked():
    script = "import os, torch, ldpkernels.keys as k; torch.manual_seed(3); {}"
    draw = "print(k.torch_key(None, torch.device('cpu')).item())"
    assert run_python(script.format(draw)) == run_python(script.format(f"os.fork() or os._exit(0); os.wait(); {draw}"))


def test_threads_draw_distinct_keys():
    torch.manual_seed(0)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(lambda: [torch_key(None, CPU).item() for _ in range(500)]) for _ in range(16)]
        keys = [k for job in jobs for k in job.result()]
    assert len(set(keys)) == 8000
    torch.manual_seed(0)
    alone = [torch_key(None, CPU).item() for _ in range(8000)]
    assert collections.Counter(keys) == collections.Counter(alone), "threads drew other keys than one thread does"


def test_threads_perturb_at_once_without_disturbing_each_other():
    def work(i):
        with ldpkernels.backend(_native.isas()[i % len(_native.isas())]):
            return perturbed(key(i % 3))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(120)))
    assert found == [perturbed(key(i % 3)) for i in range(120)]


def test_keys_of_a_torch_generator_have_64_random_bits():
    torch.manual_seed(0)
    words = np.array([torch_key(None, CPU).item() for _ in range(300)], np.int64)
    ones = np.unpackbits(words.view(np.uint8).reshape(300, 8), axis=1).mean(axis=0)
    assert ((ones > 0.3) & (ones < 0.7)).all(), "a bit hardly moves (chance 1e-11)"
