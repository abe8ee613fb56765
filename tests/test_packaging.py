"""The layout: declared packages are those on disk, links and mapping agree, imports point one way, files stay small."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

from localllm.cli.doctor import TRITON

ROOT = Path(__file__).resolve().parent.parent
MAPPED = ("gguf_io", "kernels", "tui")
RANK = {"gguf_io": 0, "kernels": 1, "localllm": 2, "tui": 3}
LONGEST_FILE = 400  # lines

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the source tree")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def sources() -> list[Path]:
    return [
        path
        for top in ("localllm", *MAPPED)
        for path in (ROOT / top).rglob("*.py")
        if not (top == "localllm" and path.relative_to(ROOT).parts[1] in MAPPED)
    ]


def test_doctor_knows_which_versions_of_triton_are_installed() -> None:
    wanted = project()["project"]["optional-dependencies"]["gpu"]
    assert f"triton{TRITON}; platform_system == 'Linux'" in wanted


def test_declared_packages_are_those_on_disk() -> None:
    found = set()
    for path in sources():
        if path.name == "__init__.py":
            parts = path.parent.relative_to(ROOT).parts
            found.add(".".join(parts if parts[0] == "localllm" else ("localllm", *parts)))
    assert set(project()["tool"]["setuptools"]["packages"]) == found


def test_mapping_and_links_lead_to_the_same_folders() -> None:
    mapping = project()["tool"]["setuptools"]["package-dir"]
    assert mapping == {"localllm": "localllm"} | {f"localllm.{name}": name for name in MAPPED}
    for name in MAPPED:
        link = ROOT / "localllm" / name
        assert link.is_symlink(), f"{link} must be a link to ../{name}"
        assert link.resolve() == ROOT / name


def imported_modules(path: Path, tree: ast.AST | None = None) -> list[str]:
    """Absolute names of everything that a file imports, relative imports resolved."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    package = list(parts[:-1] if parts[0] == "localllm" else ("localllm", *parts[:-1]))
    names = []
    for node in ast.walk(tree or ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names


def rank_of(module: str) -> int | None:
    parts = module.split(".")
    if parts[0] != "localllm":
        return None
    return RANK.get(parts[1] if len(parts) > 1 and parts[1] in RANK else "localllm")


def test_imports_point_left_only() -> None:
    wrong = []
    for path in sources():
        own = RANK[path.relative_to(ROOT).parts[0]]
        for module in imported_modules(path):
            if module in MAPPED or module.split(".")[0] in MAPPED:
                wrong.append(f"{path.relative_to(ROOT)} imports {module} as a top-level package")
            rank = rank_of(module)
            opens_the_chat = path.match("localllm/cli/*.py") and module.startswith("localllm.tui")
            if rank is not None and rank > own and module != "localllm" and not opens_the_chat:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def runtime_imports(path: Path) -> set[str]:
    """Those that happen when the code runs, late ones too; not those for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = [ast.Pass()]
    return set(imported_modules(path, tree))


def test_no_two_modules_need_each_other() -> None:
    """Late imports hide a circle from Python, not from the reader."""
    names = {}
    for path in sources():
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts if parts[0] == "localllm" else ("localllm", *parts))
        names[name.removesuffix(".__init__")] = path
    needs = {name: runtime_imports(path) & set(names) - {name} for name, path in names.items()}
    for name, needed in needs.items():  # a package is needed by those that take a name of its own, not of a module
        needed -= {other for other in needed if any(more.startswith(f"{other}.") for more in needed)}
        needed -= {name.rpartition(".")[0]}
    needs["localllm.tui.palette"].discard("localllm.tui.app")  # Textual hands its app to a palette that it was given
    while free := [name for name, needed in needs.items() if not needed & set(needs)]:
        for name in free:
            del needs[name]
    assert not needs, {name: needed & set(needs) for name, needed in needs.items()}


def test_files_hold_one_idea() -> None:
    long = {}
    for path in [*sources(), *(ROOT / "tests").rglob("*.py")]:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LONGEST_FILE:
            long[str(path.relative_to(ROOT))] = lines
    assert not long


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert not silent
