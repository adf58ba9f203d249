// SPDX-License-Identifier: Apache-2.0
// fragment.hpp: the settings found, as files that the engine and DeepSpeed take.
#pragma once
#include <string>

#include "headrace/settings.hpp"
#include "program/failing.hpp"
#include "tune/candidates.hpp"

namespace headrace::tools {
// {"headrace": {...}} with the candidate's five keys and `where_tuned` as its "tuned": a settings
// file as it is, and one that may be merged into another.
Json settings_fragment(const Candidate& candidate, const Json& where_tuned);

// {"aio": {...}}: DeepSpeed's section, all of its keys and no other (it ignores what it does not
// know). Its queue is Linux AIO, a request or a whole queue at once: our batches of one and two are
// nearer to the former.
Json deepspeed_fragment(const Candidate& candidate);

// Throws headrace::Error kInvalidArgument where `path` holds something that is not such a fragment,
// naming what: it would be lost. A missing or empty file, a pipe, a device, "" and "-" are fine.
void check_replaceable_settings(const std::string& path);
void check_replaceable_deepspeed(const std::string& path);
}  // namespace headrace::tools
