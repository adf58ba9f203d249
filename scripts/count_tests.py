# SPDX-License-Identifier: Apache-2.0
"""Counts the results that ctest wrote.

    count_tests.py RESULTS.xml

Prints "PASSED FAILED SKIPPED", then a line for each that did not pass: "failed NAME" or
"skipped NAME".
A test that could not be started has failed: ctest's own counts call it skipped.
"""
import sys
import xml.etree.ElementTree


def outcome(case):
    status = case.get("status")
    if status == "run":
        return "passed"
    skipped = case.find("skipped")
    by_itself = skipped is not None and skipped.get("message", "").startswith("SKIP_")
    return "skipped" if status == "disabled" or by_itself else "failed"


def main(path):
    cases = xml.etree.ElementTree.parse(path).getroot().findall("testcase")
    outcomes = [(outcome(case), case.get("name")) for case in cases]
    print(*[sum(kind == each for each, _ in outcomes) for kind in ("passed", "failed", "skipped")])
    for kind, name in outcomes:
        if kind != "passed":
            print(kind, name)


main(sys.argv[1])
