# SPDX-License-Identifier: Apache-2.0
"""A page that holds all it shows, and no script: well-formed XML that browsers read as HTML."""
from xml.etree import ElementTree

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 980px; padding: 24px 20px 60px; background: #fff;
  color: #1b2128; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 36px 0 10px; border-bottom: 1px solid #d9dee4; }
p { margin: 6px 0; }
code, pre { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; }
pre { background: #f4f6f8; padding: 12px 16px; overflow-x: auto; }
figure { margin: 12px 24px 12px 0; display: inline-block; max-width: 100%; vertical-align: top; }
figcaption { font-size: 13px; max-width: 640px; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 9px; border-bottom: 1px solid #d9dee4; }
.left { text-align: left; overflow-wrap: anywhere; }
.dim, .none, figcaption, th { color: #5a6672; }
.none { font-style: italic; }
.bad { color: #b00020; font-weight: 600; }
.warnings { background: #fff4d6; border: 1px solid #d9dee4; padding: 8px 16px; margin: 16px 0; }
.wide { overflow-x: auto; }
@media print { figure, tr { break-inside: avoid; } body { max-width: none; padding: 0; } }
"""


def element(tag, *children, **attributes):
    """Children are elements and text; `css` is the attribute class."""
    made = ElementTree.Element(tag)
    for name, value in attributes.items():
        if value:
            made.set({"css": "class"}.get(name, name), value)
    for child in children:
        if not isinstance(child, str):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + child
        else:
            made.text = (made.text or "") + child
    return made


def paragraph(text, css=""):
    return element("p", text, css=css)


def table(head, rows, left):
    """The first `left` columns are text. An empty cell has a dash: a browser needs something."""
    def row(tag, values):
        return element("tr", *(element(tag, value or "-", css="left" if column < left else "")
                               for column, value in enumerate(values)))

    lines = [row("th", head)] if head else []
    return element("div", element("table", *lines, *(row("td", values) for values in rows)),
                   css="wide")


def figure(plot, caption):
    return element("figure", plot, element("figcaption", caption))


def warnings(texts):
    if not texts:
        return []
    items = (element("li", text) for text in texts)
    return [element("div", element("b", "Warnings"), element("ul", *items), css="warnings")]


class Page:
    def __init__(self, program, title):
        self.program, self.title = program, title
        self.body = [element("h1", program)]

    def add(self, *elements):
        self.body.extend(elements)

    def section(self, title, elements):
        """None without elements."""
        if elements:
            self.add(element("h2", title), *elements)

    def text(self):
        head = element("head", element("meta", name="generator", content=self.program),
                       element("meta", charset="utf-8"),
                       element("meta", name="viewport", content="width=device-width"),
                       element("title", f"{self.program} {self.title}"), element("style", STYLE))
        html = element("html", head, element("body", *self.body),
                       xmlns="http://www.w3.org/1999/xhtml", lang="en")
        return "<!DOCTYPE html>\n" + ElementTree.tostring(html, encoding="unicode") + "\n"
