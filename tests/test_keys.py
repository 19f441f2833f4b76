# SPDX-License-Identifier: Apache-2.0
# Where keys come from: reproducible where that is asked for, never shared where it is not.
import collections
import concurrent.futures
import contextlib
import importlib.util
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import ldpkernels
from ldpkernels import Key, _native, key, perturb_, secure_key
from ldpkernels.common import gpu
from ldpkernels.common.keys import host_key, numpy_key
from ldpkernels.ops import keys as ops_keys
from ldpkernels.ops.keys import torch_key

CPU = torch.device("cpu")


def run_python(script):
    """A fresh interpreter's output."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def perturbed(generator=None, library="torch"):
    x = torch.zeros(256) if library == "torch" else np.zeros(256)
    return bytes((perturb_(x, 0.0, 1.0, 1.0, generator=generator) > 0).tolist())


def default_of_torch(seed):
    torch.manual_seed(seed)
    return torch.default_generator


def own_of_torch(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seeded", [default_of_torch, own_of_torch, np.random.default_rng])
def test_a_seeded_generator_reproduces_and_seed_0_is_a_seed(seeded):
    found, library = set(), "numpy" if seeded is np.random.default_rng else "torch"
    state = torch.random.get_rng_state()
    for seed in (0, 1, 2**63 - 1):
        first, again = ([perturbed(one, library) for _ in range(2)] for one in map(seeded, (seed, seed)))
        assert first == again
        found |= set(first)
    assert len(found) == 6
    assert seeded is default_of_torch or torch.equal(torch.random.get_rng_state(), state), "the default one moved"


def test_a_generator_that_was_never_seeded_is_refused():
    with pytest.raises(ValueError, match="never seeded"):
        perturbed(torch.Generator())
    assert perturbed(torch.Generator().manual_seed(5)) == perturbed(torch.Generator().manual_seed(5))


@pytest.mark.parametrize("host", [key(1), Key((1, 2, 3, 4)), "seeded"])
def test_a_capture_refuses_keys_of_the_host(host, monkeypatch):
    # A replay would use them again. Nothing may reach the device before: there is none here, and a copy would say so.
    monkeypatch.setattr(gpu, "capturing", lambda device: device.type == "cuda")
    generator = torch.Generator().manual_seed(5) if host == "seeded" else host
    state = generator.get_state() if host == "seeded" else None
    with pytest.raises(RuntimeError, match="every replay of a CUDA graph would use the same key"):
        torch_key(generator, torch.device("cuda", 0))
    assert host != "seeded" or torch.equal(generator.get_state(), state), "the refused call drew a key"
    assert torch_key(generator, CPU).dtype == torch.int64  # nothing is captured on the CPU


def test_a_first_key_in_a_capture_is_refused(monkeypatch):
    monkeypatch.setattr(gpu, "capturing", lambda device: device.type == "cuda")
    with pytest.raises(RuntimeError, match="make one call before the capture"):
        ops_keys._state(torch.device("cuda", 0))


def test_an_explicit_key_is_the_same_everywhere():
    for k in (key(0), key(-1), secure_key("aes"), secure_key("chacha20")):
        bits = perturbed(k)
        assert bits == perturbed(k) == perturbed(k, "numpy") == perturbed(k.tensor())
    assert key(-1) == key(2**64 - 1)
    assert perturbed(key(0)) != perturbed(key(1))


@pytest.mark.parametrize("generator", [None, "secure"])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_without_a_generator_keys_come_from_the_operating_system_whatever_was_seeded(library, generator):
    seen = set()
    state = torch.random.get_rng_state()
    for _ in range(20):
        torch.random.set_rng_state(state)
        np.random.seed(0)  # noqa: NPY002  the global state must not matter
        seen.add(perturbed(generator, library))
        assert torch.equal(torch.random.get_rng_state(), state), "the default generator moved"
    assert len(seen) == 20


@pytest.mark.parametrize("backend", [None, *_native.isas(), "reference"])
def test_the_default_is_aes_where_what_runs_has_instructions_for_it_and_else_chacha20(backend, monkeypatch):
    with contextlib.nullcontext() if backend is None else ldpkernels.backend(backend):
        aes = (backend or _native.isas()[0]) in _native.AES_ISAS
        for isas in (_native.AES_ISAS, frozenset()):  # and as on a processor without
            monkeypatch.setattr(_native, "AES_ISAS", isas)
            size = 2 if aes and isas else 4
            for generator in (None, "secure"):
                assert torch_key(generator, CPU).shape == (size,)
                assert len(numpy_key(generator).words) == size
                assert len(host_key(generator)) == 8 * size
            assert repr(secure_key()) == ("Key(aes128)" if size == 2 else "Key(chacha20)")
            assert perturbed(None, "torch") != perturbed(None, "numpy")
    assert not aes or backend not in ("scalar", "reference")
    with pytest.raises(ValueError, match="cipher='des'"):
        secure_key("des")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")
def test_an_aes_key_is_refused_where_there_are_no_kernels_for_it():
    k, cuda = secure_key("aes"), torch.device("cuda", 0)
    from ldpkernels.triton.launch import is_chacha

    for call in (lambda: torch_key(k, cuda), lambda: is_chacha(k.tensor())):
        with pytest.raises(ValueError, match=r"an AES key works on the CPU only.*secure_key\('chacha20'\)"):
            call()


@pytest.mark.parametrize("cipher", ["aes", "chacha20"])
def test_secure_keys_of_a_cipher(cipher):
    words = np.array([secure_key(cipher).words for _ in range(200)], np.uint64)
    assert words.shape == (200, {"aes": 2, "chacha20": 4}[cipher])
    ones = np.unpackbits(words.view(np.uint8), axis=1).mean(axis=0)
    assert ((ones > 0.2) & (ones < 0.8)).all(), "a bit of secure keys hardly moves (chance 1e-15)"


def test_no_text_shows_a_key():
    secret = 0xFEEDFACECAFEBEEF
    for k in (key(secret), Key((secret,) * 2), Key((secret,) * 4)):
        assert str(secret) not in f"{k} {k!r} {[k]}"
    with pytest.raises(ValueError, match="1, 2 or 4 words") as error:
        Key((secret,) * 3)
    assert str(secret) not in str(error.value)
    with pytest.raises(ValueError, match="1, 2 or 4 words"):
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
    for k in (key(3), Key((1, 2)), Key((1, 2, 3, 4))):
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
import os, torch
torch.manual_seed(3)
torch.rand(3)
{first}
def child():
    if pid := os.fork():
        return os.waitpid(pid, 0)
    draw()
    os.fork() or draw()
    os._exit(0)
def draw():
    import ldpkernels
    bits = ldpkernels.report(torch.zeros(256), 0.0, 1.0, 1.0).bits.tobytes().hex()
    torch.manual_seed(42)
    print(bits, ldpkernels.report(torch.zeros(256), 0.0, 1.0, 1.0).bits.tobytes().hex(), flush=True)
child(), child(), draw()
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork on this system")
@pytest.mark.parametrize("first", ["", "import ldpkernels"], ids=["imported after the fork", "imported before"])
def test_forked_processes_never_share_noise(first):
    drawn = run_python(FORK.format(first=first))
    assert len(drawn) == len(set(drawn)) >= 6


SPAWN = """
import multiprocessing
def bits(_):
    import torch, ldpkernels
    torch.manual_seed(42)
    return ldpkernels.report(torch.zeros(256), 0.0, 1.0, 1.0).bits.tobytes().hex()
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(*pool.map(bits, range(4)))
"""


def test_spawned_processes_that_seed_alike_never_share_noise(tmp_path):
    (tmp_path / "spawned.py").write_text(SPAWN)
    done = subprocess.run([sys.executable, tmp_path / "spawned.py"], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 4


class Reports(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        torch.manual_seed(42)
        return torch.from_numpy(ldpkernels.report(torch.zeros(256), 0.0, 1.0, 1.0).bits)


def test_workers_of_a_data_loader_never_share_noise():
    found = [bytes(batch.tolist()) for batch in torch.utils.data.DataLoader(Reports(), None, num_workers=2)]
    assert len(set(found)) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_function_draws_anew_at_every_call_and_in_every_compilation():
    """Keys come before a backend sees the graph; tests/test_ops.py has the one that compiles to machine code."""

    @torch.compile(fullgraph=True, dynamic=False, backend="aot_eager")
    def noisy(x):
        return perturb_(x.clone(), 0.0, 1.0, 1.0), perturb_(x.clone(), 0.0, 1.0, 1.0)

    seen = []
    for n in (256, 256, 512, 256):  # a new shape compiles anew
        torch.manual_seed(42)
        seen += [bytes((y[:256] > 0).tolist()) for y in noisy(torch.zeros(n))]
    assert len(set(seen)) == 8
    torch._dynamo.reset()
    seen += [bytes((y > 0).tolist()) for y in noisy(torch.zeros(256))]
    assert len(set(seen)) == 10


def test_a_checkpoint_draws_anew_when_it_recomputes_and_the_gradient_is_the_same():
    x = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(4, 3).requires_grad_()
    seen = []

    def loss(rows):
        out = ldpkernels.clipped_noised_mean(rows, 1.0, 5.0)
        seen.append(out.detach().clone())
        return out.sum()

    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        torch.utils.checkpoint.checkpoint(loss, x, use_reentrant=False).backward()
    again, x.grad = x.grad, None
    ldpkernels.clipped_noised_mean(x, 1.0, 0.0).sum().backward()
    assert len(seen) == 2
    assert not torch.equal(*seen)
    assert torch.equal(x.grad, again)


def test_threads_draw_distinct_keys():
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(lambda: [tuple(torch_key(None, CPU).tolist()) for _ in range(500)]) for _ in range(16)]
        keys = [k for job in jobs for k in job.result()]
    assert len(set(keys)) == 8000
    seeded = torch.Generator().manual_seed(0)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        keys = [job.result() for job in [pool.submit(lambda: torch_key(seeded, CPU).item()) for _ in range(8000)]]
    seeded.manual_seed(0)
    alone = [torch_key(seeded, CPU).item() for _ in range(8000)]
    assert collections.Counter(keys) == collections.Counter(alone), "threads drew other keys than one thread does"


def test_threads_perturb_at_once_without_disturbing_each_other():
    def work(i):
        with ldpkernels.backend(_native.isas()[i % len(_native.isas())]):
            return perturbed(key(i % 3))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(120)))
    assert found == [perturbed(key(i % 3)) for i in range(120)]


def test_keys_of_a_torch_generator_have_64_random_bits():
    generator = torch.Generator().manual_seed(0)
    words = np.array([torch_key(generator, CPU).item() for _ in range(300)], np.int64)
    ones = np.unpackbits(words.view(np.uint8).reshape(300, 8), axis=1).mean(axis=0)
    assert ((ones > 0.3) & (ones < 0.7)).all(), "a bit hardly moves (chance 1e-11)"


def test_a_graph_that_was_recorded_draws_anew_and_holds_no_key():
    graph = make_fx(lambda x: perturb_(x.clone(), 0.0, 1.0, 1.0))(torch.zeros(64))
    assert not torch.equal(graph(torch.zeros(64)), graph(torch.zeros(64)))
    assert not dict(graph.named_buffers())
    assert "fresh_key" in graph.code


@pytest.mark.filterwarnings("ignore")
def test_a_trace_that_would_leave_the_weights_raw_is_refused():
    words = key(0).tensor()
    calls = [
        lambda x: perturb_(x.clone(), 0.0, 1.0, 1.0),
        lambda x: ldpkernels.cldp_(x.clone(), 1.0, 1.0, 1, generator=key(0)),
        lambda x: ldpkernels.clipped_noised_sum(x[:, None], 1.0, 1.0),
        lambda x: torch.ops.ldpkernels.two_point_([x], words, [0.0], [1.0], 1.0),
        lambda x: torch.ops.ldpkernels.majority_vote(x[:, None].to(torch.int64), 2),
        lambda x: ldpkernels.perturb_vector(x, 1.0, norm=1.0, generator=words),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"torch\.jit\.trace records no operation.*use torch\.compile"):
            torch.jit.trace(call, (torch.zeros(4),), check_trace=False)
