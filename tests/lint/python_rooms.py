"""Rooms of the Python package, and import circles: used by check_tree.py."""

import ast
from pathlib import Path

PACKAGE = "harness_adapter/src/ctworker"
# Room (a folder of the package) -> the rooms that its modules may import in addition to the room itself. Modules that lie in
# the package's own folder are what users and lm-eval import, and may import everything.
ROOMS = {
    "base": (),
    "options": ("base",),
    "client": ("base", "options"),
    "text": ("base", "client"),
    "harness": ("base", "client"),
    "charts": ("base",),
    "perplexity": ("base", "options", "client", "text"),
    "compare": ("base", "options", "client", "text", "perplexity", "charts"),
    "sweep": ("base", "options", "client", "text", "perplexity", "compare", "charts"),
}
# (room, module) -> reason why the room may import this module of the package's own folder.
ALLOWED = {("sweep", "ctworker.lm"): "a cell with an lm-eval task runs lm-eval with our model"}


def modules(root):
    """Module name -> file."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = ["ctworker", *path.relative_to(root / PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name, path, known):
    """The modules of the package that a module imports, anywhere in its text, also for types only."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            start = ".".join([*package[:len(package) - node.level + 1], *([node.module] if node.module else [])])
            found |= {f"{start}.{alias.name}" if f"{start}.{alias.name}" in known else start for alias in node.names}
    return found & set(known) - {name}


def circle(graph):
    """A circle of imports as a list of modules, or None."""
    done, path = set(), []

    def search(name):
        if name in path:
            return path[path.index(name):]
        if name in done:
            return None
        path.append(name)
        for other in sorted(graph[name]):
            found = search(other)
            if found:
                return found
        done.add(path.pop())
        return None

    return next(filter(None, map(search, sorted(graph))), None)


def check(root, report):
    """report(ok, what): for each module and rule."""
    known = modules(root)
    graph = {name: imports(name, path, known) for name, path in known.items()}
    for name, others in graph.items():
        room = name.split(".")[1] if name.count(".") else ""
        room = room if (root / PACKAGE / room).is_dir() else ""
        report(not room or room in ROOMS, f"{name}: the folder {room} is no room; add it to ROOMS in python_rooms.py")
        for other in others if room in ROOMS and room else ():
            there = other.split(".")[1] if other.count(".") else ""
            may = not there or there in (room, *ROOMS[room]) or (room, other) in ALLOWED
            report(may, f"{name}: modules in {room} must not import {other}")
    graph["ctworker"] = set()  # the package loads its public names on first use, and its version is everybody's
    found = circle(graph)
    report(found is None, f"modules import each other in a circle: {' -> '.join(found or [])}")


if __name__ == "__main__":
    check(Path(__file__).resolve().parents[2], lambda ok, what: ok or print(what))
