# SPDX-License-Identifier: Apache-2.0
"""Pages and comparisons of what the program `headrace` measured or planned.

  python3 scripts/report page REPORT.json [PAGE.html]       one self-contained page with plots
  python3 scripts/report compare A.json B.json [--fail-below 5%] [--json FILE]
  python3 scripts/report losses PLOT.svg NAME=REPORT.json...   of runs of train_gpt, beside another
  python3 scripts/report budgets SWEEP.json PLOT.svg           of tools/bench/budget_sweep.py

REPORT.json is what `headrace bench --json` or `headrace plan --json` wrote; A and B are of bench, A
the earlier one. Plots take matplotlib 3.6 or newer (Debian: python3-matplotlib; else from PyPI),
`compare` nothing but Python 3.9. Ratios are medians of all pairs of rounds, with the interval that
the rank sum test leaves at 95 %. It needs 4 rounds in each run. It knows the noise between the
rounds of a run, not what else changed from one run to the other: for a close call, repeat both.

Exit codes: 0 done; 1 the result could not be written; 2 refused; 3 matplotlib is missing; 4 a
workload is slower than --fail-below allows, beyond noise.
"""
import argparse
import json
import os
import pathlib
import sys
import tempfile
from xml.etree import ElementTree

from . import bench, bench_page, curves, plan_page, plots
from .compare import compared
from .document import Refused, read_document, refuse_failed, without_controls

DONE, FAILED, REFUSED, LACKING, MISSED = range(5)
OWN = ('<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head>'
       '<meta name="generator" content="headrace ', '{\n  "schema_version": 1,\n  "program": '
       '"headrace bench compare"')
PLOT = "<!-- made by headrace report -->\n"
COMPARES = "headrace bench compare"


def may_replace(path):
    """A new file, an empty one, or one that this program wrote; anything else is somebody's."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return False
    if not path.exists():
        return True
    with open(path, encoding="utf-8", errors="replace") as file:
        begin = file.read(1000)
    return not begin or begin.startswith((*OWN, PLOT))


def check_target(target, inputs):
    path = pathlib.Path(target)
    if target == "-":
        return
    if any(path.exists() and os.path.samefile(path, one) for one in inputs if os.path.exists(one)):
        raise Refused(f"{target} is what is read; nothing was written. Give another name.")
    if not may_replace(path):
        raise Refused(f"{target} is nothing that this program made, and what it holds would be "
                      "lost; nothing was written. Give another name, or remove it first.")
    if not path.absolute().parent.is_dir():
        raise Refused(f"{target}: there is no such folder; nothing was written. Make it first.")


def write(target, text):
    """Whole or not at all."""
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = pathlib.Path(target)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.absolute().parent,
                                     prefix=path.name, delete=False) as file:
        try:
            file.write(text)
            file.close()
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(file.name, 0o666 & ~umask)
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def make_page(words):
    target = words.page or str(pathlib.Path(words.report).with_suffix(".html"))
    check_target(target, [words.report])
    document = read_document(words.report, (bench.PROGRAM, plan_page.PROGRAM))
    with plots.drawing():
        if document.text("program") == bench.PROGRAM:
            refuse_failed(document)
            text = bench_page.page_of(document)
        else:
            text = plan_page.page_of(document)
    write(target, text)
    return DONE


def write_plot(target, svg):
    write(target, PLOT + ElementTree.tostring(svg, encoding="unicode") + "\n")


def make_losses(words):
    named = [run.partition("=") for run in words.runs]
    for name, equals, path in named:
        if not (name and equals and path):
            raise Refused(f"'{name}' is no NAME=REPORT.json; nothing was drawn. Give each report "
                          "the name that the plot has for it.")
    if len({name for name, _, _ in named}) < len(named):
        raise Refused("two reports have one name; nothing was drawn. Give each its own.")
    check_target(words.plot, [path for _, _, path in named])
    runs = {without_controls(name): read_document(path, ("train_gpt",))
            for name, _, path in named}
    with plots.drawing():
        write_plot(words.plot, curves.losses(runs))
    print(curves.losses_text(runs), end="", file=sys.stderr if words.plot == "-" else sys.stdout)
    return DONE


def make_budgets(words):
    check_target(words.plot, [words.sweep])
    sweep = read_document(words.sweep, ("budget_sweep",))
    with plots.drawing():
        write_plot(words.plot, curves.budgets(sweep))
    return DONE


def make_comparison(words):
    if words.json:
        check_target(words.json, [words.a, words.b])
    runs = [read_document(path, (bench.PROGRAM,)) for path in (words.a, words.b)]
    for run in runs:
        refuse_failed(run)
    comparison = compared(*runs)
    exit_code = MISSED if comparison.below(words.fail_below) else DONE
    out = sys.stderr if words.json == "-" else sys.stdout
    out.write(f"A: {words.a}\nB: {words.b}\n{comparison.text(words.fail_below)}")
    if words.json:
        document = {"schema_version": 1, "program": COMPARES, "exit_code": exit_code,
                    "a": words.a, "b": words.b, **comparison.json(words.fail_below)}
        write(words.json, json.dumps(document, indent=2) + "\n")
    return exit_code


def share(word):
    """ "5%" as 0.05."""
    if not word.endswith("%"):
        raise argparse.ArgumentTypeError(f"'{word}' is no share; write it as in 5%")
    try:
        percent = float(word[:-1])
    except ValueError:
        percent = -1
    if not 0 <= percent <= 100:
        raise argparse.ArgumentTypeError(f"'{word}' is not from 0% to 100%")
    return percent / 100


def options():
    parser = argparse.ArgumentParser(prog="report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    page = actions.add_parser("page", help="a page with plots")
    page.add_argument("report", metavar="REPORT.json")
    page.add_argument("page", metavar="PAGE.html", nargs="?",
                      help="- is stdout [the report's name with .html]")
    page.set_defaults(run=make_page)
    compare = actions.add_parser("compare", help="what changed between two runs of headrace bench")
    compare.add_argument("a", metavar="A.json", help="the earlier run")
    compare.add_argument("b", metavar="B.json", help="the later run")
    compare.add_argument("--fail-below", metavar="N%", type=share,
                         help="end with 4 where B is slower by more than this, beyond noise")
    compare.add_argument("--json", metavar="FILE", help="the comparison; - is stdout")
    compare.set_defaults(run=make_comparison)
    losses = actions.add_parser("losses", help="the losses of several runs of train_gpt")
    losses.add_argument("plot", metavar="PLOT.svg", help="- is stdout")
    losses.add_argument("runs", metavar="NAME=REPORT.json", nargs="+")
    losses.set_defaults(run=make_losses)
    budgets = actions.add_parser("budgets", help="steps under the budgets of a sweep")
    budgets.add_argument("sweep", metavar="SWEEP.json")
    budgets.add_argument("plot", metavar="PLOT.svg", help="- is stdout")
    budgets.set_defaults(run=make_budgets)
    return parser


def main(words=None):
    asked = options().parse_args(words)
    try:
        return asked.run(asked)
    except Refused as refused:
        print(f"report: {refused}", file=sys.stderr)
        return REFUSED
    except plots.Lacking as lacking:
        print(f"report: {lacking}", file=sys.stderr)
        return LACKING
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        print(f"report: {error.filename or 'stdout'}: {error.strerror}; nothing was written. Give "
              "a name that can be written.", file=sys.stderr)
        return FAILED
