"""How large and how finely cut the package is: python tools/size.py [SOURCE_FOLDER]."""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path

RECORDS = {"dataclass", "NamedTuple", "TypedDict", "BaseModel", "Section"}


def is_record(node: ast.ClassDef) -> bool:
    """A dataclass, named tuple, typed dict or section of the recipe."""
    names = {n.id for part in (*node.decorator_list, *node.bases) for n in ast.walk(part) if isinstance(n, ast.Name)}
    return bool(names & RECORDS)


def depth(importers: dict[str, set[str]]) -> int:
    """Modules in the longest chain of which each imports the one before; a package that imports its parts ends it."""
    found: dict[str, int] = {}

    def above(module: str, seen: frozenset[str]) -> int:
        if module in seen:
            return 0
        if module not in found:
            found[module] = 1 + max((above(by, seen | {module}) for by in importers.get(module, ())), default=0)
        return found[module]

    return max(above(module, frozenset()) for module in list(importers))


def main(root: Path) -> None:
    files = sorted(root.rglob("*.py"))
    lines = sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)
    records, lengths, module_functions = 0, [], []
    mentions: Counter[str] = Counter()
    importers: dict[str, set[str]] = defaultdict(set)
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        name = ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                records += is_record(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
            elif isinstance(node, ast.Name):
                mentions[node.id] += 1
            elif isinstance(node, ast.Attribute):
                mentions[node.attr] += 1
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(root.name):
                importers[str(node.module)].add(name)
        module_functions += [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    rows = {
        "lines": lines,
        "files": len(files),
        "record types": records,
        "functions": len(lengths),
        "median length of a function": statistics.median(lengths),
        "module functions": len(module_functions),
        "of these used once": sum(mentions[name] == 1 for name in module_functions),
        "modules with one importer": sum(len(by) == 1 for m, by in importers.items() if m.count(".") > 1),
    }
    rows["longest chain of imports"] = depth(importers)
    for name, value in rows.items():
        print(f"{name:30} {value:>8}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/equiav"))
