# SPDX-License-Identifier: Apache-2.0
"""A Flower app for a candidate: the files of planning/templates, with the candidate's lines in them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from string import Template

from ldpkernels.accounting.records import rounded_up
from ldpkernels.planning.answer import Answer, of_sums
from ldpkernels.planning.deployment import CHARGED, LEDGERS, NO_SHUFFLER, SUMS_SERVE, written

PACKAGE = "ldp_app"
AT_THE_ROOT = ("pyproject.toml", "README.md")
IN_THE_PACKAGE = ("__init__.py", "client_app.py", "server_app.py", "task.py")
LEAST_WEIGHTS, MOST_WEIGHTS = 85, 10**8  # of the network that stands for the user's


def check_folder(folder: Path) -> None:
    """Refuse a folder that has something in it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"app = {str(folder)!r} is there already: name a new folder, or an empty one")


def write_app(one: Answer, folder: Path) -> None:
    """Write the app into a new folder."""
    check_folder(folder)
    files = rendered(one)
    (folder / PACKAGE).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def has_app(one: Answer) -> bool:
    """Whether an app can keep the candidate's total by itself."""
    lines = one.deploy
    return bool(lines.client) and CHARGED not in lines.notes


def rendered(one: Answer) -> dict[str, str]:
    """The text of each file, by its path."""
    setting, lines, guarantee = one.setting, one.deploy, one.guarantee
    if not has_app(one):
        why = " ".join(note for note in lines.notes if note != CHARGED)
        cure = (
            " Plan with trust='local', or bring one and use the candidate's .call."
            if NO_SHUFFLER in lines.notes
            else ""
        )
        raise ValueError(f"{one.name!r} has no app: {why}{cure}")
    if SUMS_SERVE in lines.notes:
        guarantee = of_sums(setting, guarantee)
    if not LEAST_WEIGHTS <= setting.weights <= MOST_WEIGHTS:
        raise ValueError(
            f"weights = {setting.weights:,} is outside [{LEAST_WEIGHTS}, {MOST_WEIGHTS:,}], the sizes that the app's "
            "network can have: plan for your own model's number"
        )
    values = {
        "title": f"{one.name} for epsilon = {setting.epsilon:g} in {setting.rounds:,} rounds",
        "total": f"epsilon = {rounded_up(one.epsilon)} at delta = {guarantee.delta:g} for a client, over all rounds"
        " together.",
        "adversary": guarantee.adversary,
        "neighbours": guarantee.neighbouring,
        "assumptions": "\n".join(f"#   - {text}" for text in guarantee.assumptions),
        "needed": "\n".join(f"- {text}" for text in guarantee.assumptions),
        "notes": "\n".join(f"# {note}" for note in lines.notes) or "#",
        "told": "".join(f"\n{note}\n" for note in lines.notes),
        "planned": written(setting).replace("Setting", "plan", 1),
        "law": lines.law,
        "client": _in_folder(lines.client),
        "server": _in_folder(lines.server),
        "weights": str(setting.weights),
        "rounds": str(setting.rounds),
        "nodes": str(setting.nodes),
    }
    folder = resources.files("ldpkernels.planning").joinpath("templates")
    paths = {**{name: name for name in AT_THE_ROOT}, **{f"{PACKAGE}/{name}": name for name in IN_THE_PACKAGE}}
    return {
        path: Template(folder.joinpath(f"{name}.in").read_text()).substitute(values) for path, name in paths.items()
    }


def _in_folder(arguments: str) -> str:
    """The arguments with ledgers in the app's folder of them."""
    return arguments.replace(f'ledger="{LEDGERS}', 'ledger=LEDGERS + "/')
