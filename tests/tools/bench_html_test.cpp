// SPDX-License-Identifier: Apache-2.0
// bench_html_test: the page is well-formed, holds all that it shows, and leaves out what was not
// measured.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>

#include "bench/report_html.hpp"
#include "page/svg.hpp"
#include "support/temporary_directory.hpp"
#include "tools/bench_example.hpp"
#include "tools/expect_part.hpp"

namespace headrace::tools::bench_html_test {
namespace {
using bench_example::example;

// Of tags: each that opens closes, in order, with quoted attributes and known entities.
std::string fault_of(const std::string& html) {
  static const std::regex kTag(
      R"(^<(/?)([A-Za-z][A-Za-z0-9]*)((?:\s+[A-Za-z][\w:-]*="[^"<]*")*)\s*(/?)>)");
  static const std::regex kEntity("^&(lt|gt|amp|quot);");
  std::vector<std::string> open;
  std::size_t at = html.find("<html");
  for (; at < html.size(); ++at) {
    std::smatch match;
    const auto begin = html.begin() + static_cast<std::ptrdiff_t>(at);
    if (html[at] == '&') {
      if (!std::regex_search(begin, std::min(begin + 8, html.end()), match, kEntity))
        return "entity at " + html.substr(at, 40);
    } else if (html[at] == '<') {
      const std::size_t end = html.find('>', at);
      if (end == std::string::npos) return "open tag at " + html.substr(at, 40);
      const std::string tag = html.substr(at, end + 1 - at);
      if (!std::regex_match(tag, match, kTag)) return "tag " + tag.substr(0, 80);
      if (match[1] == "/") {
        if (open.empty() || open.back() != match[2]) return "closing " + tag;
        open.pop_back();
      } else if (match[4] != "/") {
        open.push_back(match[2]);
      }
    }
  }
  return open.empty() ? "" : "unclosed " + open.back();
}

Measurement full_example() {
  Measurement m = example();
  for (std::uint32_t second = 1; second <= 60; ++second) {
    const std::uint64_t bytes = second < 30 ? 3'000'000'000 : 1'200'000'000;
    m.cells[6].samples[0].seconds_of.push_back(
        {static_cast<double>(second), 1, 0, bytes + second % 7 * 40'000'000});
  }
  for (const Pattern pattern : {Pattern::kWrite, Pattern::kMixed}) {
    for (const std::uint64_t block : {256u << 10, 1u << 20, 16u << 20}) {
      for (const std::uint32_t depth : {1u, 2u, 4u, 8u, 16u, 32u}) {
        const double in_flight = static_cast<double>(block * depth) / 1e6;
        const double rate = 5 * in_flight / (in_flight + 2);
        m.cells.push_back(bench_example::cell_of(
            {.pattern = pattern, .block_bytes = block, .depth = depth}, {rate, rate * 1.02}));
      }
    }
  }
  m.cliffs.push_back({"write 4M x 4", 30, 90ull << 30, 3.1e9, 1.3e9});
  m.warnings = {"the file is smaller than the drive's cache"};
  return m;
}

std::size_t count_of(const std::string& html, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = html.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(ReportHtml, IsWellFormedWithEveryPart) {
  const std::string html = to_html(full_example());
  EXPECT_EQ(fault_of(html), "");
  for (const char* part :
       {"Heat map of throughput of read by block size and depth", "Latency by depth of read at 4M",
        "Throughput of reading, of writing and of both", "Throughput over time of write 4M x 4",
        "cache full: 3.10 to 1.30 GB/s", "slower by 2.3 %", "the file is smaller than",
        "&quot;io_block_bytes&quot;: 16777216", "ACME 990", "2026-01-02T03:04:05Z",
        "headrace bench --compare fio /mnt/nvme0", "prefers-color-scheme"})
    expect_part(html, part);
  EXPECT_EQ(count_of(html, "<figure>"), 8u);
}

TEST(ReportHtml, AStrictParserTakesItWithHostileNames) {
  Measurement m = full_example();
  const std::string hostile = "/mnt/\xff\xfe<script>alert('1')</script>&amp;\"]]>\x01\xef\xbf\xbf";
  m.drives[0].path = m.drives[0].model = m.command = m.warnings[0] = hostile;
  m.machine[0].value = m.fio_version = m.cells[0].queue = m.date = hostile;
  m.verification.mismatches = 1;
  m.verification.first_mismatch = m.cliffs[0].workload = hostile;
  const std::string html = to_html(m);
  EXPECT_EQ(fault_of(html), "");
  EXPECT_EQ(html.find("<script"), std::string::npos);
  expect_part(html,
              "/mnt/\xef\xbf\xbd\xef\xbf\xbd&lt;script&gt;alert('1')&lt;/script&gt;&amp;amp;"
              "&quot;]]&gt;\xef\xbf\xbd\xef\xbf\xbd");
  if (std::system("python3 -c 'import xml.dom.minidom' >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "no python3 for its parser";
  const headrace::testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/report.html";
  std::ofstream(path) << html;
  const std::string command =
      "python3 -c 'import sys, xml.dom.minidom as d; d.parse(sys.argv[1])' '" + path + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(ReportHtml, AsksForNothingFromElsewhere) {
  const std::string html = to_html(full_example());
  for (const char* part : {"<script", "<link", "<img", "src=", "href=", "url(", "@import"})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
  // Names, not addresses.
  EXPECT_EQ(count_of(html, "http"), count_of(html, "xmlns=\"http://www.w3.org/"));
}

TEST(ReportHtml, LeavesOutWhatWasNotMeasuredWithASentence) {
  Measurement m = example();
  m.cells.resize(1);
  m.comparisons.clear();
  const std::string one = to_html(m);
  EXPECT_EQ(fault_of(one), "");
  EXPECT_EQ(count_of(one, "<svg"), 0u);
  for (const char* part : {"No map of read: it takes two block sizes and two depths.",
                           "No curve of read: it takes two depths",
                           "No comparison of reading with writing", "No throughput over time"})
    expect_part(one, part);
  EXPECT_EQ(one.find("<h2>Compared</h2>"), std::string::npos);
  m.cells[0].samples.clear();
  const std::string none = to_html(m);
  EXPECT_EQ(fault_of(none), "");
  expect_part(none, "not reached");
  expect_part(none, "None follow");
  EXPECT_EQ(fault_of(to_html({})), "");
}

TEST(ReportHtml, PrintsAValueInEveryCellOfAHeatMapAndMarksTheRecommendedOne) {
  const std::string html = to_html(example());
  for (const char* rate : {">2.02<", ">2.72<", ">3.42<", ">4.12<", ">4.82<", ">5.52 ◆<"})
    expect_part(html, rate);
  Measurement m = example();
  m.cells[1].samples.clear();
  expect_part(to_html(m), "<title>not measured</title>");
}

TEST(ReportHtml, SplitsMixedIntoWhatWasReadAndWhatWasWritten) {
  const std::string html = to_html(example());
  expect_part(html, ">headrace rw x 4<");
  expect_part(html, ">fio io_uring rw x 4<");
  expect_part(html, ">4.35 (2.17 + 2.17)<");
}

TEST(ReportHtml, NamesWhatWasRequiredAndMissed) {
  const Measurement m = example();
  const Required required = judge(parse_thresholds("read=9GB/s,write=1GB/s"), m);
  const std::string html = to_html(m, &required);
  expect_part(html, "<p class=\"bad\">read=9GB/s: MISSED: 5.52 GB/s (read 4M x 16)</p>");
  expect_part(html, "<p>write=1GB/s: met: 3.20 GB/s (write 4M x 4)</p>");
}

TEST(Svg, TheRampGoesFromDarkToLightAndItsInkCanBeRead) {
  EXPECT_EQ(ramp_colour(0), "#440154");
  EXPECT_EQ(ramp_colour(1), "#fde725");
  EXPECT_EQ(ramp_colour(-3), ramp_colour(0));
  EXPECT_EQ(ramp_colour(7), ramp_colour(1));
  EXPECT_EQ(ink_on_ramp(0), "#ffffff");
  EXPECT_EQ(ink_on_ramp(1), "#111111");
}

TEST(Svg, TicksAreRoundAndFew) {
  for (const double most : {0.013, 0.7, 1.0, 5.5, 12.0, 99.0, 3600.0}) {
    const double step = tick_step(most);
    EXPECT_GE(most / step, 2) << most;
    EXPECT_LE(most / step, 5.001) << most;
  }
  EXPECT_EQ(tick_text(0.02), "0.02");
  EXPECT_EQ(tick_text(2000), "2000");
  EXPECT_DOUBLE_EQ(tick_step(5.5), 2);
  EXPECT_DOUBLE_EQ(tick_step(12), 2.5);
}
}  // namespace
}  // namespace headrace::tools::bench_html_test
