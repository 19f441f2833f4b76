# SPDX-License-Identifier: Apache-2.0
"""What is remembered of known answers, and what follows from them, on devices that are made up."""

import ast
import re
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ldpkernels.common import capabilities  # noqa: E402
from ldpkernels.launch import proved  # noqa: E402
from ldpkernels.laws.registry import MECHANISMS  # noqa: E402

SUBJECT = proved.Subject("two_point", "values", "float32", "philox")


@pytest.fixture
def device(monkeypatch, tmp_path):
    """Which backends are wrong on the device, and what was asked of it."""
    wrong, asked = set(), []

    def ask(name, subject, device):
        asked.append((name, str(subject)))
        return proved.Answer(subject, name, "gives 1 of 9 known bytes wrong" if name in wrong else None)

    monkeypatch.setattr(proved, "ask", ask)
    monkeypatch.setattr(proved, "_identity", lambda device: "this")
    monkeypatch.setattr(proved, "_described", lambda device: f"{str(device)!r} (made up, driver 1)")
    monkeypatch.setattr(proved, "capturing", lambda device: False)
    monkeypatch.setattr(capabilities, "able", lambda *_: ("cuda", "triton"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LDPKERNELS_PROVE", raising=False)
    monkeypatch.delenv("LDPKERNELS_BACKEND", raising=False)
    forget(monkeypatch)
    return wrong, asked


def forget(monkeypatch):
    """As another process begins."""
    for name in ("_passed", "_handed_over"):
        monkeypatch.setattr(proved, name, set())
    proved._remembered.cache_clear()


def used(name="cuda", dtypes=("float32",)):
    return proved.proved(name, "two_point", "values", dtypes, "philox", torch.device("cuda", 0))


def test_what_has_passed_is_remembered_by_later_processes(device, monkeypatch, tmp_path):
    _, asked = device
    assert used() == used() == "cuda"
    forget(monkeypatch)
    assert used(dtypes=("float32", "bfloat16")) == "cuda"
    assert asked == [("cuda", str(SUBJECT)), ("cuda", "two_point values bfloat16 philox")]
    forget(monkeypatch)
    monkeypatch.setattr(proved, "_identity", lambda device: "another-driver")
    used()
    assert len(asked) == 3
    monkeypatch.setenv("LDPKERNELS_PROVE", "always")
    forget(monkeypatch)
    used()
    assert len(asked) == 4
    assert sorted(p.name for p in (tmp_path / "ldpkernels").iterdir()) == ["proved-another-driver", "proved-this"]


@pytest.mark.parametrize("source", ["_cuda.so", "triton/sign.py", "ops/questions.py"])
def test_what_has_passed_holds_for_one_build_and_its_questions(monkeypatch, tmp_path, source):
    path = tmp_path / source
    path.parent.mkdir(exist_ok=True)
    path.write_text("a")
    monkeypatch.setattr(proved, "__file__", str(tmp_path / "launch" / "proved.py"))
    before = proved._identity.__wrapped__(torch.device("cpu"))
    path.write_text("another")
    assert proved._identity.__wrapped__(torch.device("cpu")) != before


def test_a_folder_that_cannot_be_written_is_done_without(device, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    used()
    forget(monkeypatch)
    used()
    assert len(device[1]) == 2


def test_cuda_that_is_wrong_leaves_its_work_to_triton(device):
    wrong, asked = device
    wrong.add("cuda")
    with pytest.warns(RuntimeWarning, match=r"the cuda kernel of two_point .*made up.*Triton's is used"):
        assert used() == "triton"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert used() == "triton"
    assert [name for name, _ in asked] == ["cuda", "triton"]
    wrong.add("triton")
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(proved.WrongAnswerError, match="the triton kernel of two_point values float64"),
    ):
        used(dtypes=("float64",))


def test_what_is_forced_is_not_replaced(device, monkeypatch):
    device[0].add("cuda")
    monkeypatch.setattr(capabilities, "forced", lambda: "cuda")
    for _ in range(2):
        with pytest.raises(proved.WrongAnswerError, match=r"driver 1.*LDPKERNELS_BACKEND .* move the tensors to 'cpu'"):
            used()


def test_a_capture_wants_the_answers_before_it(device, monkeypatch):
    monkeypatch.setattr(proved, "capturing", lambda device: True)
    with pytest.raises(RuntimeError, match=r"has not been checked on 'cuda:0' yet.*once before the capture"):
        used()
    monkeypatch.setattr(proved, "capturing", lambda device: False)
    used()
    monkeypatch.setattr(proved, "capturing", lambda device: True)
    assert used() == "cuda"


def test_modes(device, monkeypatch):
    monkeypatch.setenv("LDPKERNELS_PROVE", "never")
    assert used() == "cuda"
    assert used("avx2") == "avx2"
    assert not device[1]
    monkeypatch.setenv("LDPKERNELS_PROVE", "sometimes")
    with pytest.raises(ValueError, match="LDPKERNELS_PROVE='sometimes' must be one of once, always, never"):
        used()


def test_every_kernel_has_its_questions():
    kernels = {kind.kernel for kind in MECHANISMS.values()} | {"ordinal_cldp", "clipped_noise", "votes"}
    kernels |= {"vectors", "normals", "summary", "quantiles", "tally", "next_key"}
    asked = proved.subjects()
    assert {subject.kernel for subject in asked} == kernels
    assert len(set(asked)) == len(asked)


def test_whoever_runs_triton_asks_first():
    """A launch that forgot to ask would run unproved kernels."""
    folder = Path(proved.__file__).parent
    for path in folder.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name not in (
                "_run_triton",
                "_on_triton",
                "_privunitg_on_triton",
            ):
                text = ast.unparse(function)
                if re.search(r"ldpkernels\.triton|_on_triton\(\)", text):
                    assert re.search(r"proved\.\w+\(|_prove\(", text), f"{path.name}: {function.name}"
