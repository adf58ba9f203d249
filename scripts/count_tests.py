# SPDX-License-Identifier: Apache-2.0
"""Counts the results that ctest wrote.

    count_tests.py RESULTS.xml

Prints "PASSED FAILED SKIPPED", then a line for each that did not pass: "failed NAME" or
"skipped NAME", and under a failed one the end of what it printed, its failures first.
A test that could not be started has failed: ctest's own counts call it skipped.
"""
import re
import sys
import xml.etree.ElementTree


def outcome(case):
    status = case.get("status")
    if status == "run":
        return "passed"
    skipped = case.find("skipped")
    by_itself = skipped is not None and skipped.get("message", "").startswith("SKIP_")
    return "skipped" if status == "disabled" or by_itself else "failed"


FAILURE = re.compile(
    r"Failure$|FAILED|FATAL|ERROR|WARNING: ThreadSanitizer|terminate|[Aa]ssert|check failed")


def what_it_said(case, head=40, tail=20):
    """Lines from the first that speaks of a failure on, and the last ones."""
    lines = (case.findtext("system-out") or "").splitlines()
    first = next((at for at, line in enumerate(lines) if FAILURE.search(line)), len(lines))
    shown = sorted(set(range(first, min(first + head, len(lines)))) |
                   set(range(max(0, len(lines) - tail), len(lines))))
    return [lines[at][:300] for at in shown]


def main(path):
    cases = xml.etree.ElementTree.parse(path).getroot().findall("testcase")
    outcomes = [(outcome(case), case.get("name")) for case in cases]
    print(*[sum(kind == each for each, _ in outcomes) for kind in ("passed", "failed", "skipped")])
    for (kind, name), case in zip(outcomes, cases):
        if kind != "passed":
            print(kind, name)
        if kind == "failed":
            print(*("  | " + line for line in what_it_said(case)), sep="\n")


main(sys.argv[1])
