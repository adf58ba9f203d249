// SPDX-License-Identifier: Apache-2.0
// style.hpp: how an HTML report looks: light and dark, on paper, on a narrow screen.
#pragma once

namespace headrace::tools {
// Series are told apart by dashes as well as by colour (Okabe and Ito's set).
inline constexpr const char* kHtmlStyle = R"(
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b2128; --dim: #5a6672;
  --grid: #d9dee4; --panel: #f4f6f8; --s1: #0072b2; --s2: #c85200; --s3: #00795a;
  --bad: #b00020; --warn: #fff4d6; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181d; --ink: #e4e8ec; --dim: #9aa5b1; --grid: #343c45; --panel: #1d2329;
    --s1: #56b4e9; --s2: #e69f00; --s3: #3fc39a; --bad: #ff7a8a; --warn: #3a3014; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 980px; padding: 24px 20px 60px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 36px 0 10px; padding-bottom: 4px;
  border-bottom: 1px solid var(--grid); }
p { margin: 6px 0; }
.dim, .none, figcaption { color: var(--dim); }
.none { font-style: italic; }
.bad { color: var(--bad); font-weight: 600; }
.warnings { background: var(--warn); border: 1px solid var(--grid); border-radius: 6px;
  padding: 8px 16px; margin: 16px 0; }
code, pre { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace;
  font-size: 13px; }
code { overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--grid); border-radius: 6px;
  padding: 12px 16px; overflow-x: auto; user-select: all; }
figure { margin: 12px 24px 12px 0; display: inline-block; max-width: 100%; vertical-align: top; }
figcaption { font-size: 13px; max-width: min(520px, 90vw); }
pre.words { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; }
@media (max-width: 800px) {
  pre.words { white-space: pre; }
  figure.plot { overflow-x: auto; margin-right: 0; }
  figure.plot svg { max-width: none; }
}
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 9px; border-bottom: 1px solid var(--grid);
  white-space: nowrap; }
th { color: var(--dim); font-weight: 600; }
.left { text-align: left; }
td.wrap { white-space: normal; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; font: 13px system-ui, "Segoe UI", Roboto, sans-serif; }
svg text { fill: var(--ink); }
svg text.dim { fill: var(--dim); }
svg text.small { font-size: 11px; fill: var(--dim); }
svg text.heading { font-weight: 600; }
svg text.value[fill="#111111"] { fill: #111111; }
svg text.value[fill="#ffffff"] { fill: #ffffff; }
svg .frame { fill: none; stroke: var(--grid); }
svg .chosen { stroke: var(--ink); stroke-width: 3; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { stroke: var(--dim); }
svg .curve, svg .thin { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
svg .thin { stroke-width: 1.3; }
svg .s1 { stroke: var(--s1); } svg .s2 { stroke: var(--s2); } svg .s3 { stroke: var(--s3); }
svg .mark { fill: var(--page); stroke-width: 2; }
svg .dashed { stroke-dasharray: 7 4; } svg .dotted { stroke-dasharray: 2 4; }
svg .bar1, svg .bar2 { stroke: var(--page); fill: var(--s1); }
svg .bar2 { fill: var(--s2); }
svg .cliff { stroke: var(--bad); stroke-width: 1.6; stroke-dasharray: 5 3; }
svg text.cliff-text { fill: var(--bad); font-weight: 600; }
@media print {
  :root { --page: #ffffff; --ink: #000000; --dim: #444444; --grid: #cccccc; --panel: #ffffff;
    --s1: #0072b2; --s2: #c85200; --s3: #00795a; --bad: #b00020; --warn: #ffffff; }
  figure, tr { break-inside: avoid; }
  body { max-width: none; padding: 0; font-size: 12px; }
  table { font-size: 10px; }
  th, td { padding: 2px 4px; white-space: normal; }
}
)";
}  // namespace headrace::tools
