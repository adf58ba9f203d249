// SPDX-License-Identifier: Apache-2.0
// report.hpp: the report of `headrace tune`: at most 100 columns, GB is 10^9 bytes.
#pragma once
#include <string>
#include <vector>

#include "bench/measurement.hpp"
#include "program/failing.hpp"
#include "tune/tuner.hpp"

namespace headrace::tools {
// All of a run.
struct TuneReport {
  Goal goal = Goal::kStep;
  Measurement run;  // machine, drives, warnings, verification, totals; no cells
  TuneResult result;
  Json settings;  // the fragment
};

// A table per stage, the fresh rounds, the result and the fragment, verification, warnings.
std::string report_text(const TuneReport& report);
// "1M x 4, batch 1: 2.52 GB/s [2.41, 2.63]; 1.08 [1.03, 1.14] of the defaults", and what else is to
// be known of it, a sentence each.
std::vector<std::string> result_sentences(const TuneResult& result);
Json report_json(const TuneReport& report);
}  // namespace headrace::tools
