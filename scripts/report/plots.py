# SPDX-License-Identifier: Apache-2.0
"""Plots by matplotlib, as elements of a page."""
import io
import os
import sys
from xml.etree import ElementTree

# Told apart by dashes as well as by colour (Okabe and Ito's set).
BLUE, ORANGE, GREEN, RED = "#0072b2", "#c85200", "#00795a", "#b00020"
# Text stays text, the same figures give the same bytes, and no name is taken for a formula.
SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "headrace", "text.parse_math": False,
            "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
            "axes.grid": True, "grid.color": "#d9dee4", "axes.axisbelow": True}


class Lacking(Exception):
    """What this needs is not installed; its text names the command that installs it."""


def drawing():
    """A context in which plots are made. Throws Lacking."""
    try:
        import matplotlib
    except ImportError:
        of_debian = (os.path.realpath(sys.executable).startswith("/usr/bin/")
                     and os.path.exists("/etc/debian_version"))
        command = ("sudo apt-get install python3-matplotlib" if of_debian
                   else f"{sys.executable} -m pip install matplotlib")
        raise Lacking(f"{sys.executable} has no matplotlib, which draws the plots; no page was "
                      f"made. Run: {command}") from None
    return matplotlib.rc_context(SETTINGS)


def new_figure(width, height, rows=1):
    """In inches; with its axes, one above the other."""
    from matplotlib.figure import Figure
    drawn = Figure(figsize=(width, height), layout="constrained")
    return drawn, drawn.subplots(rows, sharex=True, squeeze=False)[:, 0]


def take_logarithms(set_scale, axis):
    """With ticks at 1, 2, 5 and their powers of ten, written out."""
    from matplotlib.ticker import LogLocator
    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(LogLocator(subs=()))


def _in_page(node, prefix):
    """Names without namespaces, and identifiers that no other plot of the page has."""
    attributes = list(node.attrib.items())
    node.attrib.clear()
    node.tag = node.tag.rpartition("}")[2]
    for name, value in attributes:
        name = name.rpartition("}")[2]
        if name == "id":
            value = prefix + value
        elif name == "href" and value.startswith("#"):
            value = "#" + prefix + value[1:]
        node.set(name, value.replace("url(#", f"url(#{prefix}"))
    for child in node:
        _in_page(child, prefix)


def svg_of(drawn, name, description):
    """`name` is of this plot alone within its page."""
    text = io.StringIO()
    drawn.savefig(text, format="svg")
    svg = ElementTree.fromstring(text.getvalue())
    _in_page(svg, name + "-")
    for child in list(svg):
        # Who made it and when, and a style that would hold for the whole page.
        if child.tag == "metadata" or child.find("style") is not None:
            svg.remove(child)
    svg.attrib.pop("version", None)
    svg.set("xmlns", "http://www.w3.org/2000/svg")
    svg.set("stroke-linejoin", "round")
    svg.set("role", "img")
    svg.set("aria-label", description)
    return svg
