# SPDX-License-Identifier: Apache-2.0
# What is refused, in words that name the argument, its value and the cure; and after each refusal nothing has changed.
import fractions
import math
import warnings

import numpy as np
import pytest
import torch

import ldpkernels
import ldpkernels.ops
from ldpkernels import perturb_, report


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in torch, and still met
        return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)


def compressed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in beta
        return torch.eye(4).to_sparse_csr()


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


BAD_TENSORS = {
    "integer": (lambda: torch.ones(4, dtype=torch.int32), TypeError, "dtype torch.int32"),
    "boolean": (lambda: torch.ones(4, dtype=torch.bool), TypeError, "dtype torch.bool"),
    "complex": (lambda: torch.ones(4, dtype=torch.complex64), TypeError, "dtype torch.complex64"),
    "float8": (lambda: torch.ones(4).to(torch.float8_e4m3fn), TypeError, "dtype torch.float8"),
    "sparse": (lambda: torch.ones(4).to_sparse(), TypeError, "is sparse_coo"),
    "compressed": (compressed, TypeError, "is sparse_csr"),
    "quantized": (quantized, TypeError, "is quantized"),
    "nested": (nested, TypeError, "is nested"),
    "meta": (lambda: torch.ones(4, device="meta"), ValueError, "meta device"),
    "expanded": (lambda: torch.ones(1).expand(4), ValueError, "overlaps itself"),
    "strided over itself": (lambda: torch.ones(9).as_strided((4, 4), (1, 1)), ValueError, "overlaps itself"),
    "array": (lambda: np.ones(4, np.float32), TypeError, "is a ndarray among torch"),
    "number": (lambda: 1.0, TypeError, "is a float among torch"),
    "nothing": (lambda: None, TypeError, "is a NoneType among torch"),
}
BAD_ARRAYS = {
    "integer": (lambda: np.ones(4, np.int64), TypeError, "dtype int64"),
    "complex": (lambda: np.ones(4, np.complex128), TypeError, "dtype complex128"),
    "long double": (lambda: np.ones(4, np.longdouble), TypeError, "dtype"),
    "objects": (lambda: np.array([1.0, None]), TypeError, "dtype object"),
    "big-endian": (lambda: np.ones(4, ">f4"), TypeError, "dtype >f4"),
    "broadcast": (lambda: np.lib.stride_tricks.as_strided(np.ones(1), (4,), (0,)), ValueError, "overlaps itself"),
    "windows": (
        lambda: np.lib.stride_tricks.sliding_window_view(np.ones(9), 3, writeable=True),
        ValueError,
        "overlaps itself",
    ),
    "tensor": (lambda: torch.ones(4), TypeError, "is a Tensor among NumPy"),
    "number": (lambda: 1.0, TypeError, "is a float among NumPy"),
}


def bits(t):
    if isinstance(t, torch.Tensor):
        return t.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return t.tobytes()


def good(library):
    x = np.random.default_rng(0).normal(size=300).astype(np.float32)
    y = np.random.default_rng(1).normal(size=(5, 7))
    return [torch.from_numpy(x), torch.from_numpy(y).T] if library == "torch" else [x, y.T]


def refuses(error, match, call, tensors):
    before = [bits(t) for t in tensors]
    versions = [t._version for t in tensors if isinstance(t, torch.Tensor)]
    with pytest.raises(error, match=match):
        call()
    assert [bits(t) for t in tensors] == before, "a refused call changed a tensor"
    assert [t._version for t in tensors if isinstance(t, torch.Tensor)] == versions


@pytest.mark.parametrize(
    ("library", "kind"), [("torch", k) for k in BAD_TENSORS] + [("numpy", k) for k in BAD_ARRAYS], ids=str
)
def test_bad_tensors(library, kind):
    make, error, match = (BAD_TENSORS if library == "torch" else BAD_ARRAYS)[kind]
    bad, tensors = make(), good(library)
    for model in ([*tensors, bad], {"first": tensors[0], "bad.weight": bad}):
        named = r"'2'.*" if isinstance(model, list) else r"'bad.weight'.*"
        refuses(error, named + match, lambda model=model: perturb_(model, 0.0, 1.0, 1.0), tensors)
        refuses(error, named + match, lambda model=model: report(model, 0.0, 1.0, 1.0), tensors)


def test_mixed_the_other_way_around():
    for first, second in [(torch.ones(3), np.ones(3)), (np.ones(3), torch.ones(3))]:
        refuses(TypeError, "one library", lambda a=first, b=second: perturb_([a, b], 0.0, 1.0, 1.0), [first, second])


def test_read_only_arrays_report_but_are_not_perturbed():
    x = np.ones(9)
    x.flags.writeable = False
    refuses(ValueError, "read-only", lambda: perturb_([np.zeros(3), x], 0.0, 1.0, 1.0), [x])
    assert report(x, 0.0, 1.0, 1.0).nbytes == 2


def test_shared_memory():
    x, a = torch.ones(100), np.ones(100)
    for model in (
        [x[:60], x[59:]],
        {"a": x, "b": x.view(10, 10)},
        [x[::2], x[::3]],
        [x, x.view(torch.int32).view(torch.float32)],
        [x[50:], torch.zeros(3), x[40:51:10]],
    ):
        tensors = list(model.values()) if isinstance(model, dict) else model
        for call in (perturb_, report):
            refuses(ValueError, "share memory", lambda m=model, f=call: f(m, 0.0, 1.0, 1.0), [x, *tensors])
    shifted = a.view(np.uint8)[4:-4].view(np.float64)
    for model in ([a[:60], a[59:]], [a[::-1], a[4:5]], {"a": a, "b": a.view(np.float32)}, [a[::2], shifted[1::2]]):
        tensors = list(model.values()) if isinstance(model, dict) else model
        for call in (perturb_, report):
            refuses(ValueError, "share memory", lambda m=model, f=call: f(m, 0.0, 1.0, 1.0), [a, *tensors])


RANGES = [
    ([0.0], "C has 1 values for 2 tensors"),
    ([0.0, 1.0, 2.0], "C has 3 values for 2 tensors"),
    ([], "C has 0 values"),
    ([0.0, math.nan], "C=nan must be finite"),
    ({"w": 0.0}, "C names no range for 'v.b'"),
    ({"w": 0.0, "v": 0.0, "u": 0.0}, "C names 'u', which is not a tensor"),
    ({}, "C names no range for 'w'"),
    (math.inf, "C=inf must be finite"),
    ({"w": 0.0, "v": -math.inf}, "C=-inf must be finite"),
]


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize(("value", "match"), RANGES)
def test_bad_ranges(value, match, library):
    tensors = good(library)
    model = dict(zip(["w", "v.b"], tensors, strict=True))
    for call in (perturb_, report):
        refuses(ValueError, match, lambda call=call: call(model, value, 1.0, 1.0), tensors)
        radius = match.replace("C ", "R ").replace("C=", "R=")
        refuses(ValueError, radius, lambda call=call: call(model, 0.0, value, 1.0), tensors)


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize(
    "value", ["0", b"1", None, [None, 0.0], [[0.0, 0.0]] * 2, {"w": "0", "v": 0}, object(), 1j, {"w": None, "v": 0}]
)
def test_ranges_that_are_no_numbers(value, library):
    tensors = good(library)
    model = dict(zip(["w", "v.b"], tensors, strict=True))
    refuses(TypeError, "C=", lambda: perturb_(model, value, 1.0, 1.0), tensors)
    refuses(TypeError, "R=", lambda: perturb_(model, 0.0, value, 1.0), tensors)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_one_bad_range_among_good_ones(library):
    tensors = good(library)
    refuses(ValueError, "R=-1", lambda: perturb_(tensors, 0.0, [1.0, -1.0], 1.0), tensors)
    refuses(OverflowError, "C=1e\\+39", lambda: perturb_(tensors[::-1], [0.0, 1e39], 1.0, 1.0), tensors)
    for eps in (0.0, -1.0, math.nan, math.inf, 1e-11):
        refuses(ValueError, "eps=", lambda eps=eps: perturb_(tensors, 0.0, 1.0, eps), tensors)
    refuses(TypeError, "eps=", lambda: perturb_(tensors, 0.0, 1.0, "1"), tensors)
    assert perturb_(tensors, 0.0, 1.0, fractions.Fraction(1, 2)) is tensors


def test_one_overflow_among_good_ones():
    tensors = [*good("torch"), torch.ones(10, dtype=torch.float16)]
    refuses(OverflowError, "float16", lambda: perturb_(tensors, 0.0, [1.0, 1.0, 6e4], 1.0), tensors)
    refuses(OverflowError, "float16", lambda: perturb_(tensors, [0, 0, 65504.0], 1.0, 1.0), tensors)


@pytest.mark.parametrize(
    ("library", "generator"),
    [("torch", g) for g in (0, "cuda", np.random.default_rng(0), torch.zeros(3, dtype=torch.int64), torch.zeros(1))]
    + [("numpy", g) for g in (0, "os", torch.Generator(), np.zeros(2, np.int64), torch.zeros(1, dtype=torch.int64))],
)
def test_bad_generators(library, generator):
    tensors = good(library)
    for call in (perturb_, report):
        refuses(
            TypeError, "generator|key", lambda call=call: call(tensors, 0.0, 1.0, 1.0, generator=generator), tensors
        )


def test_a_key_on_another_device():
    x, key = good("torch"), torch.zeros(1, dtype=torch.int64, device="meta")
    refuses(ValueError, "the key is on meta", lambda: perturb_(x, 0.0, 1.0, 1.0, generator=key), x)


def test_a_key_tensor_in_an_error_is_not_shown():
    secret = torch.tensor([1234567890123], dtype=torch.int64)
    with pytest.raises(TypeError) as error:
        perturb_(np.zeros(2), 0.0, 1.0, 1.0, generator=secret)
    assert "1234567890123" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "error", "match"),
    [
        ([], ValueError, "sequence has no tensors"),
        ({}, ValueError, "mapping has no tensors"),
        (torch.nn.ReLU(), ValueError, "module has no tensors"),
        ("weights", TypeError, "model is a str"),
        (None, TypeError, "model is a NoneType"),
        (3.0, TypeError, "model is a float"),
        (iter([torch.ones(3)]), TypeError, "model is a list_iterator"),
        ({1: torch.ones(3)}, TypeError, "key 1 must be a string"),
        ([[torch.ones(3)]], TypeError, "'0' is a list"),
        (torch.nn.LazyLinear(3), ValueError, "'weight' is not initialized"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_what_is_no_model(model, error, match):
    for call in (perturb_, report):
        with pytest.raises(error, match=match):
            call(model, 0.0, 1.0, 1.0)


def test_integer_leaves_of_a_module_are_named():
    m = torch.nn.Module()
    m.w = torch.nn.Parameter(torch.ones(3))
    m.q = torch.nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
    refuses(TypeError, "'q' has dtype torch.int8", lambda: perturb_(m, 0.0, 1.0, 1.0), [m.w, m.q])


def test_the_raw_operations_check_too():
    """They can be called without the functions around them."""
    x, key = good("torch"), torch.zeros(1, dtype=torch.int64)
    for tensors, k, c, r, eps, error in [
        ([], key, [], [], 1.0, ValueError),
        (x, key, [0.0], [1.0, 1.0], 1.0, ValueError),
        (x, key, [0.0, 0.0], [1.0], 1.0, ValueError),
        (x, key.float(), [0.0, 0.0], [1.0, 1.0], 1.0, TypeError),
        (x, key.expand(2), [0.0, 0.0], [1.0, 1.0], 1.0, TypeError),
        (x, key, [0.0, math.nan], [1.0, 1.0], 1.0, ValueError),
        (x, key, [0.0, 0.0], [1.0, -1.0], 1.0, ValueError),
        (x, key, [0.0, 0.0], [1.0, 1.0], 0.0, ValueError),
        ([*x, x[0][3:]], key, [0.0] * 3, [1.0] * 3, 1.0, ValueError),
        ([*x, torch.ones(3).int()], key, [0.0] * 3, [1.0] * 3, 1.0, TypeError),
    ]:
        for op in (torch.ops.ldpkernels.two_point_, torch.ops.ldpkernels.two_point_report):
            refuses(error, "key|tensor|argument|C=|R=|eps=|zip", lambda op=op, a=(tensors, k, c, r, eps): op(*a), x)
    with pytest.raises(ValueError, match="eps"):
        torch.ops.ldpkernels.two_point_threshold(x[0], 0.0, 1.0, math.nan, "report")
    assert ldpkernels.two_point_threshold(x[0], 0.0, 1.0, 1.0).shape == x[0].shape
