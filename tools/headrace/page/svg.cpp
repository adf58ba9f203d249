// SPDX-License-Identifier: Apache-2.0
#include "page/svg.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/utf8.hpp"

namespace headrace::tools {
namespace {
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

std::string attribute(std::string_view name, std::string_view value) {
  return value.empty() ? "" : fmt::format(" {}=\"{}\"", name, escaped(value));
}

std::string closed(std::string_view element, std::string_view hint) {
  if (hint.empty()) return "/>\n";
  return fmt::format("><title>{}</title></{}>\n", escaped(hint), element);
}

std::string_view anchor_text(Anchor anchor) {
  switch (anchor) {
    case Anchor::kMiddle:
      return "middle";
    case Anchor::kEnd:
      return "end";
    default:
      return "";
  }
}

using Colour = std::array<double, 3>;
// Viridis, a perceptually even ramp; between these it is linear.
constexpr std::array<Colour, 6> kRamp{
    {{68, 1, 84}, {65, 68, 135}, {42, 120, 142}, {34, 168, 132}, {122, 209, 81}, {253, 231, 37}}};

Colour colour_at(double share) {
  const double at = std::clamp(share, 0.0, 1.0) * (kRamp.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(at), kRamp.size() - 2);
  const double part = at - static_cast<double>(below);
  Colour colour{};
  for (std::size_t i = 0; i < 3; ++i)
    colour[i] = kRamp[below][i] * (1 - part) + kRamp[below + 1][i] * part;
  return colour;
}
}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t size = base::utf8_size(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(size, 1));
    const auto first = static_cast<unsigned char>(character[0]);
    // U+FFFE and U+FFFF are no characters of XML either.
    const bool forbidden = size == 0 || (first < 0x20 && first != '\t' && first != '\n') ||
                           character == "\xef\xbf\xbe" || character == "\xef\xbf\xbf";
    if (forbidden) {
      out += kReplacement;
    } else if (first == '<') {
      out += "&lt;";
    } else if (first == '>') {
      out += "&gt;";
    } else if (first == '&') {
      out += "&amp;";
    } else if (first == '"') {
      out += "&quot;";
    } else {
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out;
}

Svg::Svg(double width, double height, std::string_view description)
    : body_(fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
                        "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n",
                        width, height, escaped(description))) {}

void Svg::rect(double x, double y, double width, double height, std::string_view css_class,
               std::string_view hint, std::string_view fill) {
  body_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"{}{}{}",
                       x, y, width, height, attribute("class", css_class), attribute("fill", fill),
                       closed("rect", hint));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css_class) {
  body_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"{}/>\n", x1,
                       y1, x2, y2, attribute("class", css_class));
}

void Svg::polyline(std::span<const std::pair<double, double>> points, std::string_view css_class) {
  std::string list;
  for (const auto& [x, y] : points)
    list += fmt::format("{}{:.1f},{:.1f}", list.empty() ? "" : " ", x, y);
  body_ += fmt::format("<polyline points=\"{}\" fill=\"none\"{}/>\n", list,
                       attribute("class", css_class));
}

void Svg::circle(double x, double y, double radius, std::string_view css_class,
                 std::string_view hint) {
  body_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"{}{}", x, y, radius,
                       attribute("class", css_class), closed("circle", hint));
}

void Svg::text(double x, double y, std::string_view text, std::string_view css_class, Anchor anchor,
               std::string_view fill) {
  body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}{}>{}</text>\n", x, y,
                       attribute("class", css_class), attribute("text-anchor", anchor_text(anchor)),
                       attribute("fill", fill), escaped(text));
}

double Scale::operator()(double value) const {
  const double share = logarithmic
                           ? (std::log(value) - std::log(from)) / (std::log(to) - std::log(from))
                           : (value - from) / (to - from);
  return begin + share * (end - begin);
}

double tick_step(double most) {
  const double rough = most / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 2.5, 5.0}) {
    if (rough <= step * power) return step * power;
  }
  return 10 * power;
}

std::string tick_text(double value) {
  return value >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::string ramp_colour(double share) {
  const Colour c = colour_at(share);
  return fmt::format("#{:02x}{:02x}{:02x}", std::lround(c[0]), std::lround(c[1]),
                     std::lround(c[2]));
}

std::string_view ink_on_ramp(double share) {
  const Colour c = colour_at(share);
  const double brightness = 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2];
  return brightness > 120 ? "#111111" : "#ffffff";
}
}  // namespace headrace::tools
