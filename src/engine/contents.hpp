// SPDX-License-Identifier: Apache-2.0
// contents.hpp: determines which of weight, master and moments a parameter has, and where they are.
#pragma once
#include "headrace/engine.hpp"
#include "headrace/settings.hpp"
#include "partition/registry.hpp"

namespace headrace::engine {
struct Contents {
  const partition::Registry& registry;
  const Settings& settings;

  // The master of an f32 parameter is its weight.
  Content kept_as(ParameterId id, Content content) const;
  // Throws kInvalidArgument for content that does not exist: some rules have fewer moments, and a
  // frozen parameter has none.
  void require(ParameterId id, Content content, const char* call) const;
};

// Throws kInvalidArgument for a frozen parameter. The message says that it `lacks` the content.
void refuse_frozen(const partition::Registry& registry, ParameterId id, const char* call,
                   const char* lacks);
}  // namespace headrace::engine
