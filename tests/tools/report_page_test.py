# SPDX-License-Identifier: Apache-2.0
"""report_page_test: pages made of reports, of those that the program itself writes too.

  report_page_test.py HEADRACE
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from xml.etree import ElementTree

sys.dont_write_bytecode = True
from report_example import MI, bench_report, changed, job, run_report, write  # noqa: E402

HEADRACE = sys.argv.pop(1)
XHTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"


def python_with_matplotlib():
    """This one, or Debian's, whose package the set-up installs."""
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and subprocess.run(
                [python, "-c", "import matplotlib"], capture_output=True).returncode == 0:
            return python
    return None


PYTHON = python_with_matplotlib()


class Pages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def page(self, report, *words):
        """The page's root, as a strict parser reads it, and its text."""
        page = self.folder / "page.html"
        ran = run_report("page", write(self.folder, "report.json", report), str(page), *words,
                         python=PYTHON)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        text = page.read_text(encoding="utf-8")
        return ElementTree.fromstring(text), text

    def plan(self, *words):
        path = self.folder / "plan.json"
        subprocess.run([HEADRACE, "plan", *words, "--json", path], capture_output=True)
        return json.loads(path.read_text(encoding="utf-8"))


def figures(root):
    return [svg.get("aria-label") for svg in root.iter(SVG + "svg")]


def words_of(root):
    return " ".join(" ".join(root.itertext()).split())


class BenchPage(Pages):
    def test_has_every_figure_and_every_fact(self):
        report = bench_report()
        for pattern in ("write", "rw"):
            for block in (MI, 16 * MI):
                for depth in (1, 32):
                    report["jobs"].append(job(pattern, block, depth, [1.5, 1.6]))
        root, text = self.page(report)
        self.assertEqual(figures(root), [
            "Heat map of throughput of read by block size and depth",
            "Heat map of throughput of write by block size and depth",
            "Heat map of throughput of rw by block size and depth",
            "Latency by depth of read at 4M",
            "Throughput of reading, of writing and of both at once"])
        self.assertEqual([title.text for title in root.iter(XHTML + "h2")], [
            "At a glance", "Throughput by block size and depth", "Latency by depth",
            "Reading, writing, both", "Compared", "All that was measured",
            "Drives, machine, build"])
        words = words_of(root)
        for part in ("headrace bench --compare fio /mnt/nvme0", "2026-01-02T03:04:05Z; 6 rounds "
                     "in 42 s, 8 GiB written", "verified: 1,234,567 pages of 4 KiB",
                     "the file is smaller than the drive's cache",
                     "slower by 2.3 %", "ACME 990, ext4, O_DIRECT, 4 GiB",
                     "fio-3.33", "Linux 6.1", "99 %", "3.20* [3.10, 3.30]",
                     "* fewer than 6 rounds bound nothing"):
            self.assertIn(part, words)
        self.assertNotIn("NaN", text)

    def test_a_heat_map_has_each_value_and_marks_the_recommended_one(self):
        root, _ = self.page(changed(bench_report(), "jobs/1/samples", []))
        texts = [text.text for text in next(root.iter(SVG + "svg")).iter(SVG + "text")]
        for value in ("2.02", "–", "3.42", "4.12", "4.83", "5.53 ◆"):
            self.assertIn(value, texts)

    def test_mixed_is_split_into_what_was_read_and_what_was_written(self):
        root, _ = self.page(bench_report())
        words = words_of(root)
        self.assertIn("headrace rw 4M x 4", words)
        self.assertIn("fio io_uring rw 4M x 4", words)
        self.assertIn("4.35 (2.17 + 2.17)", words)

    def test_what_was_not_measured_is_a_sentence(self):
        report = bench_report()
        report["jobs"] = report["jobs"][:1]
        report.update(comparisons=[], recommended_jobs={"read": 0})
        root, _ = self.page(report)
        self.assertEqual(figures(root), [])
        for part in ("No map of read: it takes two block sizes and two depths.",
                     "No curve of read: it takes two depths",
                     "No comparison of reading with writing"):
            self.assertIn(part, words_of(root))
        report["jobs"][0]["samples"] = []
        report["recommended_jobs"] = {}
        root, _ = self.page(report)
        self.assertIn("read 1M x 1 not reached", words_of(root))

    def test_asks_for_nothing_from_elsewhere_and_names_nothing_twice(self):
        root, text = self.page(bench_report())
        for part in ("<script", "<link", "<img", "src=", "@import", "url(h", 'href="h'):
            self.assertNotIn(part, text)
        self.assertEqual(text.count("http"), text.count('xmlns="http://www.w3.org/'))
        names = [node.get("id") for node in root.iter() if node.get("id")]
        self.assertEqual(len(names), len(set(names)))
        for node in root.iter():
            if node.get("href"):
                self.assertIn(node.get("href")[1:], names)

    def test_hostile_names_stay_text(self):
        hostile = "/mnt/<script>alert('1')</script>&amp;\"]]>\x01\ud800\uffff $x$"
        report = bench_report()
        report["drives"][0]["path"] = report["drives"][0]["model"] = report["command"] = hostile
        report["machine"]["cpu"] = report["fio version"] = report["date"] = hostile
        report["warnings"] = [hostile]
        report["machine"][hostile] = hostile
        report["jobs"][0]["queue"] = hostile
        report["verification"].update(mismatches=1, first_mismatch=hostile)
        for one in report["jobs"][:7]:
            one["jobname"] = hostile
        report["jobs"][8]["workload"]["fio_engine"] = hostile
        root, text = self.page(report)
        self.assertNotIn("<script", text)
        self.assertIn("/mnt/<script>alert('1')</script>&amp;\"]]>\ufffd\ufffd\ufffd $x$",
                      words_of(root))

    def test_the_same_report_gives_the_same_bytes(self):
        self.assertEqual(self.page(bench_report())[1], self.page(bench_report())[1])

    def test_takes_what_the_program_writes(self):
        path = self.folder / "bench.json"
        subprocess.run([HEADRACE, "bench", "--rw", "read,rw", "--bs", "256k,1M", "--iodepth",
                        "2,4", "--size", "64M", "--max-write", "1G", "--runtime", "6",
                        "--json", path, self.folder],
                       check=True, capture_output=True, timeout=100)
        root, _ = self.page(json.loads(path.read_text(encoding="utf-8")))
        self.assertEqual(len(figures(root)), 5)
        self.assertIn("verified: 16,384 pages", words_of(root))


class PlanPage(Pages):
    def test_has_every_figure_and_every_fact(self):
        root, _ = self.page(self.plan("llama-3-8b", "--machine", "workstation", "--batch", "4",
                                      "--checkpointing", "--drive-tbw", "600"))
        self.assertEqual(figures(root), [
            "Lanes over the time of one step", "Memory over one step: device",
            "Memory over one step: host", "Memory over one step: NVMe",
            "Seconds per step against tokens per micro-batch"])
        for part in ("llama-3-8b on workstation", "Fits: ", "a projection: no step on a GPU",
                     "8,030,261,248 parameters", "optimizer state", "activations, 16-bit",
                     "NVMe write", "from ", "tokens per micro-batch on (now 8,192)",
                     "takes", "TB a day and lasts", "none, one rank", "assumed: one Gen4 drive",
                     "headrace.moments=8bit", "limit 64 GiB"):
            self.assertIn(part, words_of(root))

    def test_has_what_a_store_costs(self):
        report = self.plan("gpt2-xl", "--machine", "workstation", "--set", "headrace.store=run-1",
                           "--set", "headrace.durable=step")
        root, _ = self.page(report)
        self.assertIn("a kill loses at most 1 step that had returned", words_of(root))

    def test_a_plan_that_does_not_fit_says_why(self):
        report = self.plan("gpt2", "--machine", "workstation", "--set",
                           "headrace.host_budget_bytes=100000000")
        root, _ = self.page(report)
        words = words_of(root)
        self.assertIn("Does not fit: ", words)
        self.assertIn("the least possible plan needs", words)

    def test_activations_stay_until_backward_which_waits_for_a_deferred_update(self):
        report = self.plan("llama-3-8b", "--machine", "workstation")
        self.assertTrue(report["plan_of_one_rank"]["deferred_updates"])
        script = ("import json, sys; sys.path.insert(0, sys.argv[1]); from report import "
                  "plan_plots; from report.document import Fields; report = Fields("
                  "json.load(sys.stdin), 'x', 'x'); print(json.dumps(plan_plots."
                  "activations_over_time(report, report.at('prediction_of_one_rank'))))")
        scripts = str(pathlib.Path(__file__).resolve().parents[2] / "scripts")
        ran = subprocess.run([PYTHON, "-c", script, scripts], input=json.dumps(report),
                             capture_output=True, text=True, check=True)
        (first, _), (filled, most), (turn, still), (_, none), (end, _) = json.loads(ran.stdout)
        self.assertEqual((first, most, still, none),
                         (0, report["activation_bytes_estimated"], most, 0))
        prediction = report["prediction_of_one_rank"]
        self.assertAlmostEqual(turn, filled + prediction["update"]["seconds"]
                               - prediction["hidden_seconds"])
        self.assertAlmostEqual(end, prediction["step_seconds"], delta=end / 50)


class Plots(Pages):
    """Each a file of its own."""

    def plot(self, *words):
        """`words` has FOLDER for the folder of files."""
        ran = run_report(*(word.replace("FOLDER", str(self.folder)) for word in words),
                         python=PYTHON)
        return ran, self.folder / "plot.svg"

    def train(self, name, loss):
        steps = [{"loss": loss + 1 / (1 + step)} for step in range(40)]
        write(self.folder, name, {"schema_version": 1, "program": "train_gpt",
                                  "eval_loss": loss, "steps": steps})

    def test_losses_of_runs_and_how_far_they_are_apart(self):
        self.train("a.json", 2.37)
        self.train("b.json", 2.38)
        for _ in range(2):  # its own plot may be replaced
            ran, plot = self.plot("losses", "FOLDER/plot.svg", "f32 $m$=FOLDER/a.json",
                                  "8<bit=FOLDER/b.json")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(ran.stdout, "f32 $m$: held-out loss 2.3700 (+0.0000)\n"
                                     "8<bit: held-out loss 2.3800 (+0.0100)\n")
        words = words_of(ElementTree.fromstring(plot.read_text(encoding="utf-8")))
        for part in ("f32 $m$", "8<bit", "loss, nats per byte", "step"):
            self.assertIn(part, words)
        for runs, part in ((["FOLDER/a.json"], "is no NAME=REPORT.json"),
                           (["a=FOLDER/a.json", "a=FOLDER/b.json"], "two reports have one name")):
            ran, _ = self.plot("losses", "FOLDER/other.svg", *runs)
            self.assertEqual(ran.returncode, 2)
            self.assertIn(part, ran.stderr)

    def test_steps_under_the_budgets_of_a_sweep(self):
        rows = [{"budget": held << 20, "held_mib": held, "measured": 0.5, "least": 0.4,
                 "most": 0.6, "predicted": 0.45, "moved": 28 - held / 50} for held in (100, 700)]
        write(self.folder, "sweep.json", {"schema_version": 1, "program": "budget_sweep",
                                          "rows": rows})
        ran, plot = self.plot("budgets", "FOLDER/sweep.json", "FOLDER/plot.svg")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        words = words_of(ElementTree.fromstring(plot.read_text(encoding="utf-8")))
        for part in ("seconds per step", "measured: median, least and most", "predicted",
                     "host memory of the engine, MiB", "700"):
            self.assertIn(part, words)


class Command(Pages):
    def test_wrong_reports_are_named(self):
        failed = {"schema_version": 1, "program": "headrace plan", "version": "0.1.0",
                  "error": {"exit_code": 2, "code": "kUsage", "message": "MODEL is missing"}}
        for report, part in (
                (changed(bench_report(), "jobs/0/latency_ns", None),
                 "jobs[0].latency_ns is missing; nothing was made of it. Give a file that headrace "
                 "bench --json or headrace plan --json wrote."),
                (changed(bench_report(), "recommended_jobs/read", 99), "another field names 99"),
                (changed(bench_report(), "recommended_jobs/trim", 1), "recommended for trim"),
                (changed(bench_report(), "program", "headrace doctor"), "is 'headrace doctor'"),
                (failed, "error says that the run failed: MODEL is missing"),
                ("", "is no JSON"), ("[]", "the document is an array where an object")):
            ran = run_report("page", write(self.folder, "x.json", report), python=PYTHON)
            self.assertEqual(ran.returncode, 2, ran.stderr)
            self.assertIn(part, ran.stderr)
            self.assertTrue(ran.stderr.startswith("report: "), ran.stderr)
            self.assertEqual(os.listdir(self.folder), ["x.json"])

    def test_the_page_lies_beside_its_report_and_replaces_nothing_of_others(self):
        report = write(self.folder, "x.json", bench_report())
        page = self.folder / "x.html"
        for _ in range(2):  # its own page may be replaced
            self.assertEqual(run_report("page", report, python=PYTHON).returncode, 0)
        self.assertEqual(page.stat().st_mode & 0o777, 0o666 & ~self.umask())
        page.write_text("<html>mine</html>")
        ran = run_report("page", report, python=PYTHON)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("what it holds would be lost", ran.stderr)
        self.assertEqual(page.read_text(), "<html>mine</html>")
        stdout = run_report("page", report, "-", python=PYTHON).stdout
        self.assertTrue(stdout.startswith("<!DOCTYPE html>"))

    @staticmethod
    def umask():
        umask = os.umask(0)
        os.umask(umask)
        return umask

    def test_without_matplotlib_the_command_that_installs_it_is_named(self):
        (self.folder / "matplotlib.py").write_text("raise ImportError\n")
        report = write(self.folder, "x.json", bench_report())
        root = pathlib.Path(__file__).resolve().parents[2]
        ran = subprocess.run([PYTHON, root / "scripts" / "report", "page", report],
                             env={**os.environ, "PYTHONPATH": str(self.folder)},
                             capture_output=True, text=True)
        self.assertEqual(ran.returncode, 3, ran.stderr)
        self.assertRegex(ran.stderr, "has no matplotlib.*Run: .* install .*matplotlib")


if __name__ == "__main__":
    if PYTHON is None:
        print("skipped: no matplotlib (Debian: python3-matplotlib)")
        sys.exit(77)
    unittest.main()
