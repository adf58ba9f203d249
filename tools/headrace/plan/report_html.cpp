// SPDX-License-Identifier: Apache-2.0
// report_html.cpp: a plan as one page.
#include <fmt/core.h>

#include "page/style.hpp"
#include "page/svg.hpp"
#include "plan/plots.hpp"
#include "plan/report.hpp"

namespace headrace::tools {
namespace {
std::string section(const char* title, const std::string& body) {
  return body.empty() ? "" : fmt::format("<h2>{}</h2>\n{}", title, body);
}
}  // namespace

std::string plan_html(const PlanResult& r, Planning& planning) {
  const std::string name = escaped(r.scenario.model->name + " on " + r.scenario.machine.name);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
      "<meta name=\"generator\" content=\"headrace plan\"/>\n"
      "<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n"
      "<title>headrace plan: {}</title>\n<style>{}</style>\n</head>\n<body>\n<h1>headrace "
      "plan</h1>\n<p class=\"dim\">{}</p>\n<p><b>{}</b></p>\n",
      name, kHtmlStyle, name, escaped(first_line(r)));
  for (const std::string& note : notes_of(r))
    html += "<p class=\"dim\">" + escaped(note) + "</p>\n";
  // Its table follows in the words.
  if (!r.outcome.fits())
    html += "<p>" + escaped(r.outcome.refusal.substr(0, r.outcome.refusal.find('\n'))) + "</p>\n";
  if (r.outcome.plan) {
    html += section("Lanes over time", lanes_over_time(r));
    html += section("Memory by tier over the step", memory_over_time(r));
    html += section("Step time against batch", step_by_batch(r, planning));
  }
  html += section("In words", "<pre class=\"words\">" + escaped(plan_text(r)) + "</pre>\n");
  return html + "</body>\n</html>\n";
}
}  // namespace headrace::tools
