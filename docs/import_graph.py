"""Draws which room of the package imports which, and fails where an arrow goes the wrong way.

    python docs/import_graph.py [OUT.svg]

Rooms are the modules and folders directly in `mlt_jax/`; their order is the layers contract in `pyproject.toml`. A room
may import the rooms below it. Arrows that point up, sideways or at the package root are drawn in red, on the left.
"""

import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).parents[1]
PACKAGE = "mlt_jax"
ROW, WIDTH, HEIGHT, LEFT, TOP = 44, 120, 28, 130, 56
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#72b7b2", "#9d755d", "#e45756", "#bab0ac", "#eeca3b")


class Arrow(NamedTuple):
    """One room imports another; the package root is the room "" (above all)."""

    importer: str
    imported: str


def layers() -> list[list[str]]:
    """The rooms of each layer, the highest first, as `pyproject.toml` has them for import-linter."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    contract = next(contract for contract in contracts if contract["type"] == "layers")
    return [[room.strip() for room in layer.split("|")] for layer in contract["layers"]]


def arrows() -> dict[Arrow, list[str]]:
    """Every arrow between two rooms, with the imports ("importer -> imported") it is made of."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    found: dict[Arrow, list[str]] = defaultdict(list)
    for module in sorted(graph.modules - {PACKAGE}):
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            arrow = Arrow(_room(module), _room(imported))
            if arrow.importer != arrow.imported:
                found[arrow].append(f"{module} -> {imported}")
    return dict(sorted(found.items()))


def _room(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def wrong_way(found: dict[Arrow, list[str]]) -> list[Arrow]:
    """The arrows that do not point down."""
    level = {room: k for k, layer in enumerate(layers()) for room in layer} | {"": -1}
    for arrow in found:
        if missing := {arrow.importer, arrow.imported} - set(level):
            raise ValueError(f"{missing.pop()}: in no layer of the import-linter contract; add it in pyproject.toml")
    return [arrow for arrow in found if level[arrow.imported] <= level[arrow.importer]]


def draw(found: dict[Arrow, list[str]]) -> str:
    """The picture as SVG: a row per room, an arc per arrow, as wide as it is long."""
    bad = set(wrong_way(found))
    order = [[""]] * any(arrow.imported == "" for arrow in bad) + layers()
    rooms = [room for layer in order for room in layer]
    place = {room: TOP + ROW * k for k, room in enumerate(rooms)}
    verdict = f"{len(bad)} arrows, in red, point the wrong way" if bad else "every arrow points down"
    longest = max((abs(place[a.imported] - place[a.importer]) for a in found), default=0)
    width, height = LEFT + WIDTH + _bulge(longest) + 40, TOP + ROW * len(rooms) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="14">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="16" y="24" font-weight="bold">Which room of {PACKAGE} imports which: {verdict}</text>',
    ]
    for k, layer in enumerate(order):
        if k % 2 == 0:
            parts.append(
                f'<rect x="0" y="{place[layer[0]] - 8}" width="{width}" height="{ROW * len(layer)}" fill="#f3f4f6"/>'
            )
    outgoing, incoming = _ports(found, place)
    for arrow in sorted(found, key=lambda a: place[a.importer] - place[a.imported]):  # short arcs lie on top
        side = -1 if arrow in bad else 1
        x = LEFT if side < 0 else LEFT + WIDTH
        start, end = outgoing[arrow], incoming[arrow]
        reach = x + side * min(_bulge(abs(end - start)), 120 if side < 0 else longest)
        colour = "#d00" if arrow in bad else COLOURS[rooms.index(arrow.importer) % len(COLOURS)]
        name = f"{arrow.importer} imports {arrow.imported or PACKAGE}"
        parts.append(
            f'<path d="M{x} {start:g} C{reach} {start:g} {reach} {end:g} {x + 7 * side} {end:g}" fill="none" '
            f'stroke="{colour}" stroke-width="1.6"><title>{name}</title></path>'
            f'<path d="M{x} {end:g} l{9 * side} -4 v8 z" fill="{colour}"/>'
        )
    for room in rooms:
        y = place[room]
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="#fff" stroke="#333"/>'
            f'<text x="{LEFT + WIDTH / 2:g}" y="{y + 19}" text-anchor="middle">{room or PACKAGE}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bulge(length: float) -> int:
    return round(30 + 0.75 * length)


def _ports(found: dict[Arrow, list[str]], place: dict[str, int]) -> tuple[dict[Arrow, float], dict[Arrow, float]]:
    """Where arrows leave and arrive: spread over the box's edge, those from above first, so that few of them cross."""
    ends: dict[str, list[tuple[float, int, Arrow]]] = defaultdict(list)
    for arrow in found:
        gap = place[arrow.imported] - place[arrow.importer]
        ends[arrow.importer].append((1 / gap, 0, arrow))  # below the arrivals; the longest arc leaves first
        ends[arrow.imported].append((-1 / gap, 1, arrow))
    ports: tuple[dict[Arrow, float], dict[Arrow, float]] = ({}, {})
    for room, entries in ends.items():
        for k, (_, kind, arrow) in enumerate(sorted(entries)):
            ports[kind][arrow] = place[room] + HEIGHT * (k + 1) / (len(entries) + 1)
    return ports


def main(out: Path) -> int:
    """Writes the picture; 1, with a line for every import that points the wrong way, if there is any."""
    found = arrows()
    out.write_text(draw(found))
    for arrow in wrong_way(found):
        print(f"{arrow.importer} -> {arrow.imported or PACKAGE} points the wrong way:", file=sys.stderr)
        for line in found[arrow]:
            print(f"  {line}", file=sys.stderr)
    return 1 if wrong_way(found) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("imports.svg")))
