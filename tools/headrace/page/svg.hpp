// SPDX-License-Identifier: Apache-2.0
// svg.hpp: drawings inside an HTML page: shapes one after the other, colours by the page's classes.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace headrace::tools {
// Text between tags or in an attribute. Bytes that are no UTF-8, and characters that XML has not,
// become U+FFFD.
std::string escaped(std::string_view text);

enum class Anchor { kStart, kMiddle, kEnd };

// Units are pixels of the drawing's own size; a narrower page shrinks it.
class Svg {
 public:
  // `description` is what is read aloud.
  Svg(double width, double height, std::string_view description);

  // `hint` is shown under the pointer; "" is none. Classes are those of the page's style.
  void rect(double x, double y, double width, double height, std::string_view css_class,
            std::string_view hint = "", std::string_view fill = "");
  void line(double x1, double y1, double x2, double y2, std::string_view css_class);
  void polyline(std::span<const std::pair<double, double>> points, std::string_view css_class);
  void circle(double x, double y, double radius, std::string_view css_class,
              std::string_view hint = "");
  void text(double x, double y, std::string_view text, std::string_view css_class = "",
            Anchor anchor = Anchor::kStart, std::string_view fill = "");

  std::string done() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

// Where a plot's area lies in its drawing, in pixels.
struct Frame {
  double width, height;  // of the drawing
  double left, right, top, bottom;
};

// A value's place on an axis.
struct Scale {
  double from, to;    // values
  double begin, end;  // pixels
  bool logarithmic = false;
  double operator()(double value) const;
};
// Round values from 0 to at least `most`, four to six of them; their distance.
double tick_step(double most);
std::string tick_text(double value);  // "0.02", "5", "2000"

// From 0 (dark violet) to 1 (yellow), in an order that the colour-blind see too; "#rrggbb".
std::string ramp_colour(double share);
// What can be read on it.
std::string_view ink_on_ramp(double share);
}  // namespace headrace::tools
