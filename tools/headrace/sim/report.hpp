// SPDX-License-Identifier: Apache-2.0
// report.hpp: simulated worlds, for people and for programs.
#pragma once
#include <string>
#include <vector>

#include "program/failing.hpp"
#include "sim/published.hpp"
#include "sim/worlds.hpp"

namespace headrace::tools {
// At least one world.
std::string worlds_text(const std::vector<World>& worlds);
Json worlds_json(const std::vector<World>& worlds);
std::string published_text(const PublishedResult& result);
Json published_json(const PublishedResult& result);
}  // namespace headrace::tools
