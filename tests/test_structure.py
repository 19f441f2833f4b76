# SPDX-License-Identifier: Apache-2.0
"""The shape of the package, from its syntax trees: which module may know which, and what an import brings."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

import ldpkernels
from ldpkernels import _native
from ldpkernels.common import capabilities
from ldpkernels.laws.registry import KINDS

PACKAGE = Path(ldpkernels.__file__).parent

# From the top: a module imports modules of lower lines, and of its own.
LAYERS = """
__main__
commands
flower nvflare
federated audit distributed releases trainers
secure_sums
ldpkernels
planning updates
calls
ops
reference triton wire
laws
launch
inputs
accounting
common _cuda _native
"""
LEVELS = {name: -level for level, line in enumerate(LAYERS.split("\n")) for name in line.split()}
# What is imported where it is used: what needs torch, Triton, SciPy, cryptography, is slow on purpose, commands' work.
LATE = (
    "ldpkernels.distributed.masked",
    "ldpkernels.secure_sums",
    "ldpkernels.ops",
    "ldpkernels.triton",
    "ldpkernels.reference",
    "ldpkernels.accounting",
    "ldpkernels._cuda",
)
MOST_LATE_IMPORTS = 42  # before: 89
MOST_ANYS = 36  # before: 584
# Lines, blank ones too. They are too many to be held in a head: what is added pays by what is removed.
MOST_LINES = {"ldpkernels": 35_080, "csrc": 10_440, "tests": 36_665, "benchmarks": 9_540}


class Import(NamedTuple):
    module: str
    imported: str
    name: str | None
    late: bool  # in a function
    typing: bool  # only for type checkers


def modules():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@functools.cache
def trees():
    """Parsed where a test asks: whoever collects all tests would pay for it."""
    return {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


def imports_of(module):
    """Every import of the package's own modules."""

    def walk(node, late, typing):
        for child in ast.iter_child_nodes(node):
            inside = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            checked = typing or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
            if isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module} has a relative import"
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    found.append(Import(module, full if full in MODULES else child.module, alias.name, late, checked))
            elif isinstance(child, ast.Import):
                found.extend(Import(module, alias.name, None, late, checked) for alias in child.names)
            walk(child, inside, checked)

    found = []
    walk(trees()[module], False, False)
    return [one for one in found if one.imported.partition(".")[0] == "ldpkernels"]


@functools.cache
def imports():
    return [one for module in MODULES for one in imports_of(module)]


def level(module):
    return LEVELS[module.split(".")[1] if "." in module else module]


def test_no_module_waits_for_itself():
    """Nor do imports inside of functions lead back: what is imported late is a part of the same work."""
    graph = {module: set() for module in MODULES}
    for one in imports():
        if not one.typing:
            graph[one.module].add(one.imported)
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_arrows_point_down():
    upward = [one for one in imports() if not one.late and not one.typing and level(one.imported) > level(one.module)]
    assert not upward
    assert LEVELS.keys() == {module.split(".")[1] if "." in module else module for module in MODULES}


def test_late_imports_are_for_what_is_heavy():
    late = [one for one in imports() if one.late]
    others = [one for one in late if not one.imported.startswith(LATE)]
    assert not [one for one in others if not (one.module.startswith("ldpkernels.commands.") and "_run" in one.imported)]
    assert len(late) <= MOST_LATE_IMPORTS, len(late)


def test_modules_keep_their_private_names():
    """But `_native` and `_cuda`, which are modules, and `__version__`."""
    private = [
        one for one in imports() if one.name and re.match(r"_(?!_)", one.name) and one.imported != module_of(one)
    ]
    assert not private
    for module, tree in trees().items():
        siblings = {one.name for one in imports() if one.module == module and one.imported == module_of(one)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr):
                assert ast.unparse(node.value) not in siblings, f"{module} reaches for {ast.unparse(node)}"


def module_of(one):
    """The module that `from package import name` names, if it names one."""
    return one.imported if one.imported.endswith(f".{one.name}") else None


def test_the_root_holds_rooms():
    here = {module for module in MODULES if module.count(".") == 1 and MODULES[module].name != "__init__.py"}
    assert here == {"ldpkernels.__main__", "ldpkernels._cuda", "ldpkernels._native"}


def test_no_module_hides_a_public_function():
    names = {module.split(".")[1] for module in MODULES if "." in module}
    assert not names & set(ldpkernels.__all__)


def test_types_are_said():
    """`Any` says nothing. Where there are fewer than the bound, lower the bound."""
    found = {module: len(re.findall(r"\bAny\b", path.read_text())) for module, path in MODULES.items()}
    total = sum(found.values())
    assert total <= MOST_ANYS, sorted(((n, module) for module, n in found.items() if n), reverse=True)
    print(f"{total} times Any; {MOST_ANYS} are allowed")


def test_the_house_does_not_grow():
    """Who has to raise a bound says why in the commit. Where there are fewer lines, lower it."""
    kinds = (".py", ".pyi", ".h", ".cpp", ".cu", ".cuh")
    for folder, most in MOST_LINES.items():
        files = [path for path in (PACKAGE.parent / folder).rglob("*") if path.suffix in kinds]
        lines = sum(path.read_text().count("\n") for path in files)
        assert lines <= most, f"{folder} has {lines:,} lines, and {most:,} are allowed"


def test_what_runs_under_the_sanitizers_is_there():
    """No other test runs the script, and pytest ends where it is given a file that is gone."""
    script = (PACKAGE.parent / "tests" / "sanitize" / "run").read_text()
    named = re.search(r"^native=\(([^)]+)\)", script, re.MULTILINE)
    assert named is not None
    missing = [name for name in named[1].split() if not (PACKAGE.parent / "tests" / f"test_{name}.py").is_file()]
    assert not missing


OPERATIONS = {f"{kind.kernel}{ending}" for kind in KINDS for ending in ("_", "_report")} | {
    "clipped_noised_sum",
    "fresh_key",
    "majority_vote",
    "ordinal_cldp_",
    "ordinal_cldp_sample",
    "two_point_threshold",
}


IMPORTED = """
import sys
import ldpkernels
print("torch" in sys.modules, "triton" in sys.modules)
import ldpkernels.ops, torch
names = torch._C._dispatch_get_all_op_names()
print(*sorted({n[12:].partition(".")[0] for n in names if n.startswith("ldpkernels::")}))
"""


def test_what_an_import_brings():
    """No torch, and with the operations all of them."""
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["False False", " ".join(sorted(OPERATIONS))], done.stderr


DESIGN = (PACKAGE.parent / "docs/design.md").read_text()


def folders(path):
    return {one.name for one in path.iterdir() if one.is_dir() and not one.name.startswith((".", "__"))}


def test_the_design_is_a_map_of_the_tree():
    shape = DESIGN.partition("## Shape\n")[2].partition("\nImports point down")[0]
    named = {"csrc": set(), "ldpkernels": set()}
    for line in shape.splitlines():
        if found := re.match(r" {4}(\w+)/ ", line):
            inside = named.get(found[1])
        elif found := re.match(r" {6}(\w+)/ ", line):
            inside.add(found[1])
    assert named == {name: folders(PACKAGE.parent / name) for name in named}
    for path in re.findall(r"\b(\w+\.(?:py|h|cpp|cu))\b", shape):
        assert list((PACKAGE.parent).glob(f"csrc/**/{path}")) or list(PACKAGE.glob(f"**/{path}")), path
    called = {path.stem for path in (PACKAGE / "calls").iterdir() if not path.name.startswith("__")}
    assert [name for name in called if f"{name}.py" not in shape and f" {name}:" not in shape] == []


def test_the_design_has_the_table_of_capabilities(monkeypatch):
    """Which mechanisms CUDA C++ has is read from csrc: those of a shape for which launches.cu has kernels."""
    registry = (PACKAGE.parent / "csrc/mechanisms/registry.h").read_text()
    launches = (PACKAGE.parent / "csrc/cuda/launches.cu").read_text()
    served = re.findall(r"struct OnCuda<(\w+)", launches)
    entries = re.findall(r'Entry<"(\w+)", (\w+)', registry)
    mechanisms = frozenset(name for name, shape in entries if shape in served)
    monkeypatch.setitem(sys.modules, "ldpkernels._cuda", SimpleNamespace(MECHANISMS=mechanisms))
    monkeypatch.setattr(ldpkernels, "_cuda", sys.modules["ldpkernels._cuda"], raising=False)
    monkeypatch.setattr(capabilities, "_cuda_kernels", capabilities._cuda_kernels.__wrapped__)
    monkeypatch.setattr(capabilities, "_gpu_backends", lambda: ("cuda", "triton"))
    rows = dict(re.findall(r"^\| (\w+) \| `.*?\| ((?:yes|no).*) \|$", DESIGN, re.MULTILINE))
    assert rows.keys() == {name for name, _ in entries} | {"clipped_noise", "votes", "vectors", "normals"}
    for kernel, row in rows.items():
        on_cpu, on_gpu = capabilities.able(kernel, "cpu"), capabilities.able(kernel, "cuda")
        able = [_native.isas()[0] in on_cpu, "reference" in on_cpu, "triton" in on_gpu, "cuda" in on_gpu]
        assert row.split(" | ") == ["yes" if one else "no" for one in able], kernel
