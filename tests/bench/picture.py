# SPDX-License-Identifier: BSD-3-Clause
"""An SVG picture of Results: how many times as fast as nbdkit's own bridge the chains are."""
from html import escape

BARS = {"native": ("rnbd-bridge", "#2f81f7"), "plugin": ("nbdkit rnbd", "#3fa45b"),
        "base": ("nbdkit nbd", "#8b949e")}
# Title, workload, placement, figure, its unit; of the last two, more or less is better.
GROUPS = [
    ("4 KiB random reads, depth 1: speed", "read-1", "one", "p50_us", "µs each", False),
    ("4 KiB random reads, depth 32: IOPS", "read-32", "one", "iops", "IOPS", True),
    ("4 KiB random reads, depth 32: I/O per CPU time", "read-32", "one", "cpu_us", "µs of CPU each",
     False),
    ("1 MiB sequential reads, one connection: MB/s", "sequential", "one", "mb_per_s", "MB/s", True),
    ("The same 4 KiB reads by stock fio, not pinned: IOPS", "fio-32", "free", "iops", "IOPS", True),
]
WIDTH, LEFT, BAR, GAP, TITLE = 760, 110, 18, 4, 26
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600 }
  .faint { fill: #656d76 }
  .one { stroke: #656d76; stroke-dasharray: 3 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .faint { fill: #9198a1 } .one { stroke: #9198a1 }
  }"""


def speeds(results, workload, placement, figure, more_is_better):
    """(chain, times the base's speed) of what was measured."""
    found = []
    for chain in BARS:
        ratio = results.ratio(figure, chain, "base", workload=workload, placement=placement)
        if ratio:
            found.append((chain, ratio if more_is_better else 1 / ratio))
    return found


def group_lines(title, base, bars, top, scale):
    """SVG elements of one group, and where the next one begins."""
    lines = [f'<text class="title" x="0" y="{top + 14}">{escape(title)}</text>',
             f'<text class="faint" x="{WIDTH}" y="{top + 14}" text-anchor="end">'
             f'1 × = {escape(base)}</text>']
    first = y = top + TITLE
    for chain, speed in bars:
        name, colour = BARS[chain]
        length = speed * scale
        lines += [f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{name}</text>',
                  f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" '
                  f'fill="{colour}"/>',
                  f'<text x="{LEFT + max(length, scale) + 6:.1f}" y="{y + 13}">{speed:.2f} ×</text>']
        y += BAR + GAP
    x = LEFT + scale
    lines.append(f'<line class="one" x1="{x:.1f}" x2="{x:.1f}" y1="{first - 2}" y2="{y}"/>')
    return lines, y + 16


def picture(results):
    groups = []
    for title, workload, placement, figure, unit, more_is_better in GROUPS:
        bars = speeds(results, workload, placement, figure, more_is_better)
        if len(bars) > 1:
            base = results.median("runs", figure, chain="base", workload=workload, placement=placement)
            groups.append((title, f"{base:,.0f} {unit}" if base >= 100 else f"{base:.1f} {unit}", bars))
    if not groups:
        raise SystemExit("nothing to draw: the chain base and another one must have been measured")
    scale = (WIDTH - LEFT - 70) / max(speed for *_, bars in groups for _, speed in bars)
    lines, top = [], 0
    for title, base, bars in groups:
        more, top = group_lines(title, base, bars, top, scale)
        lines += more
    caption = ("Times the speed of nbdkit's own bridge, over TCP on one machine. "
               f"Measured {results.data['began'][:10]}, tests/bench/run.")
    lines.append(f'<text class="faint" x="0" y="{top + 6}">{escape(caption)}</text>')
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 16}" '
                      f'width="{WIDTH}" height="{top + 16}" role="img">',
                      f"<title>{escape(caption)}</title>", f"<style>{STYLE}\n</style>", *lines,
                      "</svg>"]) + "\n"
