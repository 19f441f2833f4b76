# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: what mkdocs.yml calls.

Pages are written for who reads the repository: README.md is the first page, results lie beside what measured them, and
links are paths of files. Here they become pages of the site; a link to a file that is no page goes to the repository. A
file that does not exist is an error.
"""

from __future__ import annotations

import functools
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Pages outside docs/, and what they are called on the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
}
ANSWERS = ROOT / "build/answers.json"  # what release/explore.py computes
RESULTS = ("benchmarks/results", "benchmarks/papers/results", "benchmarks/budget")
LINK = re.compile(r"(?P<before>\]\(|\bsrc=\")(?P<target>[^)\"\s#]+)(?P<anchor>#[^)\"\s]*)?(?=[)\"])")
FENCE = re.compile(r"^```(\w+) (\S+\.\w+)$", re.M)
MENTION = re.compile(r"(?<![\w/`\[])(?<!\]\()docs/[\w/]+\.md\b(?![^\[\]]*\]\()")
NAMED = re.compile(r"(?:^::: \S+\n)+", re.M)
EXAMPLE = re.compile(r"(?:^[ ]*>>> .*\n(?:(?![ ]*$).*\n?)*)", re.M)


def site_path(source: str) -> str | None:
    """Where a file of the repository lies on the site; None where it does not."""
    if source in OUTSIDE:
        return OUTSIDE[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if source.startswith(RESULTS) and source.endswith((".md", ".png", ".svg")):
        return source
    return None


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A folder in the navigation, "integrations/*", stands for its pages, the newest result first."""
    config.nav = _expanded(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages and pictures outside docs/."""
    for folder in (".", *RESULTS):
        for path in sorted((ROOT / folder).glob("*.*")):
            source = path.relative_to(ROOT).as_posix()
            if not source.startswith("docs/") and (target := site_path(source)):
                files.append(File.generated(config, target, abs_src_path=str(path)))
    for page in (ROOT / "docs/reference").glob("*.md"):
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M):
            text = f"::: {_object(name).path}\n    options: {{heading_level: 1}}\n"
            files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


@functools.cache
def _package() -> griffe.Module:
    found = griffe.load("ldpkernels", search_paths=[str(ROOT)], resolve_aliases=True)
    assert isinstance(found, griffe.Module)
    return found


def _object(name: str) -> griffe.Object:
    """What a public name stands for: of a function in a module of its own name, the function."""
    found = _package()[name.removeprefix("ldpkernels.")]
    found = found.final_target if isinstance(found, griffe.Alias) else found
    last = name.rpartition(".")[2]
    if found.is_module and last in found.members:
        found = found.members[last]
    assert isinstance(found, griffe.Object)
    return found


def _listed(found: re.Match[str]) -> str:
    """The names of the reference with the first line of each, which has a page of its own."""
    rows = ["| | |", "|---|---|"]
    for name in found[0].replace("::: ", "").split():
        docstring = _object(name).docstring
        first = " ".join(docstring.value.partition("\n\n")[0].split()) if docstring else ""
        rows.append(f"| [`{name.removeprefix('ldpkernels.')}`]({name}.md) | {first.replace('|', chr(92) + '|')} |")
    return "\n".join([*rows, ""])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them; a fence that names its file has it as its title."""
    if page.file.abs_src_path is None:
        return markdown
    source = Path(page.file.abs_src_path).relative_to(ROOT)
    if source.name == "explore.md":
        markdown = markdown.replace("{answers}", ANSWERS.read_text())

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(source.parent.as_posix(), target))
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {target}, which does not exist")
        on_site = site_path(path)
        if on_site is None or files.get_file_from_path(on_site) is None:
            return f"{found['before']}{config.extra['repository']}/{path}{found['anchor'] or ''}"
        return f"{found['before']}{posixpath.relpath(on_site, here)}{found['anchor'] or ''}"

    here = posixpath.dirname(page.file.src_uri) or "."
    parts = re.split(r"(^```.*?^```$)", _with_pictures(markdown, source), flags=re.M | re.S)
    parts[::2] = [_with_titles(LINK.sub(link, text), here) for text in parts[::2]]
    return NAMED.sub(_listed, FENCE.sub(r'```\1 title="\2"', "".join(parts)))


def _with_titles(text: str, here: str) -> str:
    """The text with every page that it mentions as a link that reads as the page's title."""

    def linked(found: re.Match[str]) -> str:
        page = ROOT / found[0]
        if not page.exists():
            return found[0]
        title = page.read_text().partition("# ")[2].partition("\n")[0]
        return f"[{title}]({posixpath.relpath(found[0].removeprefix('docs/'), here)})"

    return MENTION.sub(linked, text)


def _with_pictures(markdown: str, source: Path) -> str:
    """A result's pictures under its title, where the page does not show them itself."""
    folder = ROOT / source.parent
    pictures = [p.name for p in sorted(folder.glob(f"{source.stem}*.png")) if source.parent.as_posix() in RESULTS]
    own = [p for p in pictures if p not in markdown and not _of_a_longer_name(p, source, folder)]
    title, _, rest = markdown.partition("\n")
    return "\n".join([title, "", *(f"![{Path(p).stem}]({p})\n" for p in own), rest])


def _of_a_longer_name(picture: str, source: Path, folder: Path) -> bool:
    return any(p.stem != source.stem and picture.startswith(p.stem) for p in folder.glob(f"{source.stem}*.md"))


def _expanded(nav: Any) -> Any:
    """The navigation with every "folder/*" replaced by the folder's pages."""
    if isinstance(nav, dict):
        return {title: _expanded(below) for title, below in nav.items()}
    if not isinstance(nav, list):
        return nav
    out = []
    for entry in nav:
        if isinstance(entry, str) and entry.endswith("/*"):
            folder = entry.removesuffix("/*")
            base = ROOT if folder.startswith("benchmarks") else ROOT / "docs"
            pages = sorted((base / folder).glob("*.md"), reverse=folder == RESULTS[0])
            out += [p.relative_to(base).as_posix() for p in pages]
        else:
            out.append(_expanded(entry))
    return [entry for entry in out if entry not in ({}, [])]


class FencedExamples(griffe.Extension):
    """Docstrings have examples as doctest reads them, where Markdown would read quotations, and name pages."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one docstring, and link its pages."""
        if obj.docstring is not None:
            text = _with_titles(obj.docstring.value, "reference") + "\n"
            obj.docstring.value = EXAMPLE.sub(lambda e: f"```pycon\n{e[0].rstrip()}\n```\n", text)
