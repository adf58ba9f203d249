#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of several train_gpt reports into one SVG.

  plot_losses.py OUT.svg NAME=REPORT.json [NAME=REPORT.json ...]

Each point is the mean of ten steps. Prints the held-out loss of each run and its difference from
the first.
"""
import json
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 56, 740, 24, 336
COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8f5fbf")
MEAN_OF = 10


def points_of(report):
    losses = [step["loss"] for step in report["steps"]]
    return [
        (first + MEAN_OF / 2, sum(losses[first : first + MEAN_OF]) / MEAN_OF)
        for first in range(0, len(losses) - MEAN_OF + 1, MEAN_OF)
    ]


def draw(runs):
    curves = [(name, points_of(report)) for name, report in runs]
    steps = max(x for _, points in curves for x, _ in points)
    values = [y for _, points in curves for _, y in points]
    least, most = min(values), max(values)

    def x_of(step):
        return LEFT + (RIGHT - LEFT) * step / steps

    def y_of(loss):
        return BOTTOM - (BOTTOM - TOP) * (loss - least) / (most - least)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for i in range(6):
        loss = least + (most - least) * i / 5
        lines.append(
            f'<path d="M{LEFT} {y_of(loss):.1f}H{RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y_of(loss) + 4:.1f}" text-anchor="end">{loss:.2f}</text>'
        )
        step = steps * i / 5
        lines.append(
            f'<text x="{x_of(step):.1f}" y="{BOTTOM + 18}" text-anchor="middle">{step:.0f}</text>'
        )
    lines.append(
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 36}" text-anchor="middle">step</text>'
        f'<text x="{LEFT}" y="{TOP - 8}">loss, nats per byte</text>'
    )
    for i, (name, points) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
        lines.append(
            f'<text x="{RIGHT - 150}" y="{TOP + 18 * (i + 1)}" fill="{colour}">{name}</text>'
        )
    return "\n".join(lines) + "\n</svg>\n"


def main():
    if len(sys.argv) < 3 or any("=" not in word for word in sys.argv[2:]):
        sys.exit(__doc__)
    runs = []
    for word in sys.argv[2:]:
        name, path = word.split("=", 1)
        with open(path, encoding="utf-8") as file:
            runs.append((name, json.load(file)))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(draw(runs))
    first = runs[0][1]["eval_loss"]
    for name, report in runs:
        loss = report["eval_loss"]
        print(f"{name}: held-out loss {loss:.4f} ({loss - first:+.4f})")


if __name__ == "__main__":
    main()
