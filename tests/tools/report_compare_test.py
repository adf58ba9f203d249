# SPDX-License-Identifier: Apache-2.0
"""report_compare_test: what `report compare` says of two reports, and which it refuses."""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from report_example import ROOT, bench_report, changed, job, run_report, scaled, write  # noqa: E402

sys.path.insert(0, str(ROOT / "scripts"))
from report import rank_sum  # noqa: E402
from report.bench import Bench  # noqa: E402
from report.compare import Comparison  # noqa: E402
from report.document import Fields, Refused  # noqa: E402


def compared(a, b):
    return Comparison(*(Bench(Fields(report, "x.json", "Give another")) for report in (a, b)))


class RankSum(unittest.TestCase):
    def test_has_the_ranks_of_the_tables_of_the_test(self):
        for m, n, rank in ((1, 1, 0), (3, 4, 0), (4, 4, 1), (5, 5, 3), (4, 10, 6), (10, 10, 24),
                           (20, 20, 128)):
            self.assertEqual(rank_sum.rank_of_bound(m, n), rank, (m, n))

    def test_of_many_values_is_that_of_the_normal_approximation(self):
        exact = rank_sum.rank_of_bound(32, 32)
        pairs, rank_sum.EXACT_PAIRS = rank_sum.EXACT_PAIRS, 0
        try:
            near = rank_sum.rank_of_bound.__wrapped__(32, 32)
        finally:
            rank_sum.EXACT_PAIRS = pairs
        self.assertLessEqual(abs(near - exact), 2)

    def test_takes_the_values_at_the_rank_from_both_ends(self):
        a = [1 + 0.001 * i for i in range(5)]
        b = [1 + 0.1 * j for j in range(5)]
        ratios = sorted(of / to for of in b for to in a)
        ratio = rank_sum.unpaired_ratio(a, b)
        self.assertEqual((ratio.low, ratio.high), (ratios[2], ratios[-3]))
        few = rank_sum.unpaired_ratio(a[:3], b[:4])
        self.assertFalse(few.bounded)

    def test_holds_the_true_ratio_at_least_95_times_in_100(self):
        # A seed is drawn anew each time: 2,000 intervals hold less than 93 % once in 10^4 runs.
        seed = random.randrange(1 << 32)
        draw = random.Random(seed)
        held = 0
        for _ in range(2000):
            a = [draw.lognormvariate(0, 0.2) for _ in range(6)]
            b = [1.3 * draw.lognormvariate(0, 0.2) for _ in range(8)]
            ratio = rank_sum.unpaired_ratio(a, b)
            held += ratio.low <= 1.3 <= ratio.high
        self.assertGreaterEqual(held, 1860, f"seed {seed}")


class Compared(unittest.TestCase):
    def test_tells_what_is_slower_beyond_noise(self):
        runs = compared(bench_report(), scaled(bench_report(), "read", 0.9))
        self.assertEqual(len(runs.cells), 9)
        self.assertAlmostEqual(runs.cells[0].ratio.median, 0.9, 3)
        self.assertFalse(runs.cells[7].ratio.told_apart(), "of the same values")
        self.assertEqual([len(runs.below(allowed)) for allowed in (0.05, 0.15, None)], [6, 0, 0])
        self.assertEqual(runs.cautions, [])
        self.assertTrue(runs.text(None).startswith(
            "  GB/s, median of rounds                  A       B   B / A [95 %]\n"
            "  read 1M x 1                          2.02    1.82   0.900 [0.887, 0.913]   "
            "slower by 10.0 %\n"), runs.text(None))

    def test_few_rounds_never_fail(self):
        runs = compared(bench_report(), scaled(bench_report(), "write", 0.3))
        self.assertEqual(runs.below(0.05), [])
        self.assertIn("too few rounds to tell", runs.text(0.05))
        self.assertIn("no cell is more than 5 % slower in B", runs.text(0.05))

    def test_noise_as_wide_as_the_difference_does_not_fail(self):
        a, b = bench_report(), bench_report()
        a["jobs"] = [job("read", 1 << 20, 1, [1.0, 2.0, 1.5, 0.8, 2.2, 1.4])]
        b["jobs"] = [job("read", 1 << 20, 1, [0.9, 1.8, 1.3, 0.7, 1.9, 1.2])]
        runs = compared(a, b)
        self.assertLess(runs.cells[0].ratio.median, 0.95)
        self.assertEqual(runs.below(0.05), [])
        self.assertIn("not told from noise", runs.text(0.05))

    def test_names_what_one_run_alone_has_and_what_else_differs(self):
        b = bench_report()
        b["jobs"][0]["samples"] = []
        b["jobs"][1]["workload"]["depth"] = 5
        b["jobs"][1]["jobname"] = "read 1M x 5"
        b["machine"]["kernel"] = "Linux 6.2"
        b["drives"][0]["model"] = "ACME 991"
        b["verification"]["mismatches"] = 1
        b["jobs"][2]["queue"] = b["jobs"][3]["queue"] = "threads"
        runs = compared(bench_report(), b)
        self.assertEqual(runs.only_in_a, ["read 1M x 1", "read 1M x 4"])
        self.assertEqual(runs.only_in_b, ["read 1M x 5"])
        self.assertEqual(runs.cautions, [
            "not the same kernel: 'Linux 6.1' in A, 'Linux 6.2' in B",
            "not the same drives: '/mnt/nvme0 (ACME 990, ext4)' in A, '/mnt/nvme0 (ACME 991, "
            "ext4)' in B",
            "B had data that came back other than written",
            "not the same queue: 'uring' in A, 'threads' in B"])


class Document(unittest.TestCase):
    def test_what_is_missing_or_wrong_is_named_by_its_place(self):
        for path, value, words in (
                ("jobs/2/samples/1/seconds", None, "jobs[2].samples[1].seconds is missing"),
                ("jobs", 7, "jobs is a number where an array is needed"),
                ("jobs/0", "x", "jobs[0] is text where an object is needed"),
                ("jobs/0/workload/pattern", "trim", "workload.pattern is 'trim', and no pattern"),
                ("jobs/0/workload/depth", 1.5, "workload.depth is not a whole number"),
                ("jobs/0/samples/0/seconds", 0, "seconds is 0, as no sample takes"),
                ("jobs/0/samples/0/seconds", 1e200, "seconds is 1e+200, as no sample takes"),
                ("jobs/0/samples/0/seconds", "1", "seconds is text where a number is needed"),
                ("jobs/0/samples/0/seconds", True, "seconds is true or false where a number"),
                ("jobs/0/samples/0/read_bytes", -1, "read_bytes is not a whole number"),
                ("jobs/0/samples/0/read_bytes", 0, "jobs[0].samples[0] moved no byte"),
                ("machine/cpu", 3, "machine.cpu is a number where text is needed"),
                ("drives/0/direct", 1, "drives[0].direct is a number where true or false")):
            with self.assertRaises(Refused, msg=words) as refused:
                run = Bench(Fields(changed(bench_report(), path, value), "x.json", "Give another"))
                run.document.at("machine").text("cpu")
                run.drives[0].flag("direct")
            self.assertIn(words, str(refused.exception))
            self.assertTrue(str(refused.exception).startswith("x.json: "))


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.a = write(self.folder, "a.json", bench_report())
        self.slower = write(self.folder, "b.json", scaled(bench_report(), "read", 0.9))

    def compare(self, *words):
        return run_report("compare", *words)

    def test_ends_with_4_where_a_workload_is_below_and_names_it(self):
        self.assertEqual(self.compare(self.a, self.slower).returncode, 0)
        report = os.path.join(self.folder, "report.json")
        missed = self.compare(self.a, self.slower, "--fail-below", "5%", "--json", report)
        self.assertEqual(missed.returncode, 4, missed.stderr)
        self.assertIn("BELOW: read 4M x 16 is 10.0 % slower in B, beyond noise; 5 % were allowed",
                      missed.stdout)
        with open(report, encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["exit_code"], 4)
        self.assertEqual(document["program"], "headrace bench compare")
        self.assertEqual([one["below"] for one in document["jobs"]], [True] * 6 + [False] * 3)
        self.assertEqual(self.compare(self.slower, self.a, "--fail-below=5%").returncode, 0)
        self.assertEqual(self.compare(self.a, self.slower, "--fail-below=12%").returncode, 0)
        again = self.compare(self.a, self.a, "--json", report)
        self.assertEqual(again.returncode, 0, again.stderr)
        stdout = self.compare(self.a, self.a, "--json", "-").stdout
        self.assertEqual(json.loads(stdout)["exit_code"], 0)

    def test_refuses_with_cause_consequence_and_fix(self):
        other = bench_report()
        for one in other["jobs"]:
            one["workload"]["depth"] = 99
        nothing_alike = write(self.folder, "c.json", other)
        with open(self.a, encoding="utf-8") as file:
            cut = write(self.folder, "cut.json", file.read()[:999])
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        mine = write(self.folder, "mine.json", "{}")
        failed = {"schema_version": 1, "program": "headrace bench",
                  "error": {"message": "the drive is gone"}}
        for words, part in (
                ([self.a], "B.json"),
                ([self.a, self.slower, "--fail-below", "5"], "'5' is no share; write it as in 5%"),
                ([self.a, self.slower, "--fail-below", "x%"], "'x%' is not from 0% to 100%"),
                ([self.a, self.slower, "--json", mine], "what it holds would be lost"),
                ([self.a, self.slower, "--json", self.a], "is what is read"),
                ([self.a, self.slower, "--json", "/nothing/here"], "there is no such folder"),
                ([self.a, "/nothing/here"], "cannot be read: No such file"),
                ([self.a, self.folder], "is a directory; nothing was made of it."),
                ([self.a, pipe], "is not a regular file"),
                ([self.a, "/dev/zero"], "is not a regular file"),
                ([self.a, cut], "cut.json: is no JSON: "),
                ([mine, self.a], "schema_version is missing; nothing was made of it. Give a file "
                                 "that headrace bench --json wrote."),
                ([write(self.folder, "v", changed(other, "schema_version", 2)), self.a],
                 "schema_version is 2 where this version reads 1"),
                ([write(self.folder, "p", changed(other, "program", "headrace tune")), self.a],
                 "program is 'headrace tune'"),
                ([write(self.folder, "n", '{"a": NaN}'), self.a], "NaN is no number"),
                ([write(self.folder, "d", "[" * 200000), self.a], "nested too deep"),
                ([write(self.folder, "f", failed), self.a], "run failed: the drive is gone"),
                ([self.a, nothing_alike], "have no workload in common; nothing was compared.")):
            ran = self.compare(*words)
            self.assertEqual(ran.returncode, 2, ran.stderr)
            self.assertIn(part, ran.stderr)
            self.assertNotIn("Traceback", ran.stderr)
        with open(mine, encoding="utf-8") as file:
            self.assertEqual(file.read(), "{}")

    def test_takes_nothing_but_python(self):
        words = (f"import sys; sys.modules['matplotlib'] = None; sys.path.insert(0, "
                 f"'{ROOT}/scripts'); from report.main import main; "
                 f"sys.exit(main(['compare', '{self.a}', '{self.a}']))")
        ran = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
