"""The repository's own rules: sizes, import directions, dead files, words that do not belong here.

A rule that fails names the file, the line and the remedy. Formatting is for other tools.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
LINE_COLUMNS_MAX = 100

# Who may import whom inside the package; a unit is the first name below `keepwarm`.
# `cli` stands above everything; a unit that is not listed may import only itself and errors.
PYTHON_IMPORTS: dict[str, set[str]] = {
    "arguments": {"errors"},
    "__init__": {
        *(
            "_core",
            "aio",
            "client",
            "connecting",
            "config",
            "errors",
            "identity",
            "outcomes",
            "prompt",
        ),
    },
    "connecting": {"_core", "arguments", "client", "config"},
    "errors": set(),
    "files": set(),
    "prompt": {"errors", "identity"},
    "identity": {"_core", "arguments", "errors", "prompt"},
    "outcomes": {"_core", "client", "errors"},
    "client": {"_core", "aio", "arguments", "config", "errors", "identity", "outcomes", "prompt"},
    "aio": {"_core", "arguments", "client", "errors", "identity", "outcomes", "prompt"},
    "config": {"_core", "errors", "machine"},
    "planner": {"prefill"},
    "prefill": set(),
    "adapter": {
        *("client", "config", "errors", "identity", "outcomes", "planner", "prompt", "__init__"),
    },
    "machine": set(),
    "ops": {
        "client",
        "config",
        "connecting",
        "engines",
        "errors",
        "identity",
        "machine",
        "outcomes",
        "__init__",
    },
    "server": {"_core", "config", "errors", "machine", "ops", "outcomes", "__init__"},
    "testing": {
        *("_core", "arguments", "client", "errors", "identity", "layout", "prompt", "config"),
        "__init__",
    },
    "engines": {"errors"},
    "layout": {"errors"},
    "workload": {
        *("_core", "client", "config", "connecting", "errors", "files", "identity", "layout"),
        *("outcomes", "prompt", "testing", "__init__"),
    },
    "bench": {"_core", "outcomes", "testing", "__init__"},
    "demo": {"client", "engines", "errors", "identity", "testing", "config", "__init__"},
    "connectors": {
        *("adapter", "client", "errors", "identity", "outcomes", "planner", "prompt", "__init__"),
    },
}
CRATE_IMPORTS: dict[str, set[str]] = {
    "keepwarm-store": set(),
    "keepwarm-wire": {"keepwarm-store"},
    "keepwarm-bench": {"keepwarm-store"},
    "keepwarm-sim": {"keepwarm-store"},
    "keepwarm-python": {"keepwarm-bench", "keepwarm-sim", "keepwarm-store", "keepwarm-wire"},
    "keepwarm-prototypes": {"keepwarm-store"},
}
# `unsafe` is for bytes that the compiler cannot follow; each place is on this list for a reason.
UNSAFE_ALLOWED = (
    "crates/store/src/arena/",  # the mapping
    "crates/store/src/arena_bytes.rs",  # copies in and out of it
    "crates/store/src/guards.rs",  # copies under a grant or a pin
    "crates/store/src/reads.rs",  # hashing under a pin
    "crates/store/src/room.rs",  # moving bytes under a pin
    "crates/store/src/cold/",  # arena extents as pieces of a tier's I/O
    "crates/store/src/checksum/",  # vector intrinsics over raw bytes
    "crates/store/src/index/",  # prefetch hints
    "crates/store/src/tiers/",  # arena pieces and aligned buffers of I/O
    "crates/store/src/flash/",  # buffers that the kernel reads and writes
    "crates/bench/src/",  # copies and transfers as bare as they can be
    "crates/python/src/",  # callers' buffers
    "crates/wire/src/",  # callers' buffers, arena pieces in system calls
    "prototypes/",
)
# Run by path in an engine's environment, imported by nothing.
ENGINE_SCRIPTS = {
    "python/keepwarm/engines/make_random.py",
    "python/keepwarm/engines/make_smollm2.py",
}
FORBIDDEN_WORDS = {
    r"\b(TODO|FIXME|XXX)\b": "finish it or file it; no notes to self in the tree",
    r"(?i)\b(pypi|crates|npmjs)\.(org|io)\b|deb\.debian\.org": "name no registry host",
}
WORDS_EXEMPT = {"Cargo.lock", "tests/test_tidy.py", "LICENSE"}


@cache
def tracked() -> tuple[Path, ...]:
    """Files that git tracks or would track, in a stable order."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return tuple(ROOT / name for name in sorted(listed) if (ROOT / name).is_file())


def named(suffix: str) -> list[Path]:
    return [path for path in tracked() if path.suffix == suffix]


def rel(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources() -> list[Path]:
    return named(".py") + named(".rs") + named(".pyi")


def report(problems: list[str]) -> None:
    assert not problems, "\n" + "\n".join(problems)


def test_files_are_short() -> None:
    report(
        [
            f"{rel(path)}: {lines} lines (limit {FILE_LINES_MAX}); split it by noun"
            for path in sources()
            if (lines := len(path.read_text().splitlines())) > FILE_LINES_MAX
        ]
    )


def test_lines_are_narrow() -> None:
    report(
        [
            f"{rel(path)}:{number}: {len(line)} columns (limit {LINE_COLUMNS_MAX})"
            for path in sources()
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if len(line) > LINE_COLUMNS_MAX
        ]
    )


def python_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def rust_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Formatted Rust closes a function with a brace in the column where `fn`'s line began."""
    opened: list[tuple[str, int, int]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(
            r"( *)(?:pub(?:\([^)]*\))? |const |async |unsafe |extern \"C\" )*fn (\w+)", line
        )
        if match and not line.rstrip().endswith(";"):
            opened.append((match[2], len(match[1]), number))
        closing = re.match(r"( *)\}", line)
        if closing and opened and len(closing[1]) == opened[-1][1]:
            name, _, start = opened.pop()
            yield name, start, number - start + 1


def test_functions_are_short() -> None:
    found = [(path, each) for path in named(".py") for each in python_functions(path)]
    found += [(path, each) for path in named(".rs") for each in rust_functions(path)]
    report(
        [
            f"{rel(path)}:{start}: {name} has {lines} lines (limit {FUNCTION_LINES_MAX})"
            for path, (name, start, lines) in found
            if lines > FUNCTION_LINES_MAX
        ]
    )


def package_imports(path: Path) -> Iterator[tuple[str, int]]:
    """Units of our own package that a module imports, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if node.module != "keepwarm":
                names = [node.module]
        for name in names:
            head, _, rest = name.partition(".")
            if head == "keepwarm":
                yield unit_of(rest.partition(".")[0]), node.lineno


def unit_of(name: str) -> str:
    """A name taken from the package itself belongs to `__init__` unless it is a module."""
    package = ROOT / "python/keepwarm"
    is_module = any((package / f"{name}{end}").exists() for end in (".py", ".pyi", "/__init__.py"))
    return name if is_module else "__init__"


def test_python_imports_point_one_way() -> None:
    problems = []
    package = ROOT / "python/keepwarm"
    for path in named(".py"):
        if not path.is_relative_to(package):
            continue
        unit = path.relative_to(package).parts[0].removesuffix(".py")
        if unit == "cli":
            continue
        allowed = PYTHON_IMPORTS.get(unit, {"errors"}) | {unit}
        problems += [
            f"{rel(path)}:{line}: keepwarm.{unit} imports keepwarm.{other}; see PYTHON_IMPORTS"
            for other, line in package_imports(path)
            if other not in allowed
        ]
    report(problems)


def test_crates_depend_one_way() -> None:
    problems = []
    for path in tracked():
        if path.name != "Cargo.toml" or "package" not in (
            manifest := tomllib.loads(path.read_text())
        ):
            continue
        name = manifest["package"]["name"]
        used = {each for each in manifest.get("dependencies", {}) if each.startswith("keepwarm-")}
        if name in CRATE_IMPORTS:
            problems += [
                f"{rel(path)}: {name} depends on {each}" for each in used - CRATE_IMPORTS[name]
            ]
    report(problems)


def test_engines_are_imported_only_by_their_connectors() -> None:
    """And by scripts that an engine's own environment runs."""
    engines = re.compile(r"^\s*(?:import|from) (vllm|sglang|lmcache|transformers|torch)\b", re.M)
    report(
        [
            f"{rel(path)}: imports {match[1]} outside keepwarm/connectors"
            for path in named(".py")
            if path.is_relative_to(ROOT / "python")
            and "connectors" not in path.parts
            and rel(path) not in ENGINE_SCRIPTS
            and (match := engines.search(path.read_text()))
        ]
    )


def test_no_python_file_is_dead() -> None:
    """Every module of the package is imported somewhere, or is a package's own `__init__`."""
    text = {path: path.read_text() for path in named(".py")}
    problems = []
    for path in text:
        if not path.is_relative_to(ROOT / "python") or path.name in ("__init__.py", "__main__.py"):
            continue
        dotted = path.relative_to(ROOT / "python").with_suffix("").as_posix().replace("/", ".")
        parent, _, name = dotted.rpartition(".")
        used = re.compile(
            rf"{re.escape(dotted)}\b|from {re.escape(parent)} import [^\n]*\b{name}\b|"
            rf"from {re.escape(parent)} import \([^)]*\b{name}\b"
        )
        if not any(used.search(body) for other, body in text.items() if other != path):
            problems.append(f"{rel(path)}: nothing imports {dotted}; delete it or use it")
    report(problems)


def test_no_rust_file_is_dead() -> None:
    """Every Rust file is a crate root or named by a `mod` of its parent."""
    problems = []
    for path in named(".rs"):
        if "src" not in path.parts or path.name in ("lib.rs", "main.rs") or "bin" in path.parts:
            continue
        name = path.parent.name if path.name == "mod.rs" else path.stem
        folder = path.parent.parent if path.name == "mod.rs" else path.parent
        above = [
            folder / "mod.rs",
            folder / "lib.rs",
            folder / "main.rs",
            folder.with_suffix(".rs"),
        ]
        text = "".join(each.read_text() for each in above if each.exists())
        if not re.search(rf"\bmod {name}\b", text):
            problems.append(f"{rel(path)}: no `mod {name}` above it; delete it or declare it")
    report(problems)


def test_unsafe_stays_where_it_is_allowed() -> None:
    report(
        [
            f"{rel(path)}:{number}: unsafe outside UNSAFE_ALLOWED"
            for path in named(".rs")
            if "/src/" in rel(path) and not rel(path).startswith(UNSAFE_ALLOWED)
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if re.search(r"\bunsafe\b", line.partition("//")[0])
        ]
    )


@pytest.mark.parametrize("pattern", FORBIDDEN_WORDS)
def test_words_that_do_not_belong_here(pattern: str) -> None:
    problems = []
    for path in tracked():
        if rel(path) in WORDS_EXEMPT or path.name == "Cargo.lock":
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        problems += [
            f"{rel(path)}:{number}: {line.strip()[:80]!r}; {FORBIDDEN_WORDS[pattern]}"
            for number, line in enumerate(text.splitlines(), 1)
            if re.search(pattern, line)
        ]
    report(problems)


def test_tests_never_sleep() -> None:
    sleeping = re.compile(r"\b(?:time|asyncio|thread|std::thread)(?:\.|::)sleep\(")
    report(
        [
            f"{rel(path)}:{number}: waits for time to pass; wait for an event instead"
            for path in sources()
            if "tests" in path.parts and path.name != "test_tidy.py"
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if sleeping.search(line)
        ]
    )


def test_each_document_has_one_title() -> None:
    problems = []
    for path in named(".md"):
        body = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
        titles = re.findall(r"^# ", body, re.M)
        if len(titles) != 1:
            problems.append(f"{rel(path)}: {len(titles)} titles of the first level; one is right")
    report(problems)
