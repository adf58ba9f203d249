// SPDX-License-Identifier: Apache-2.0
// few_lines.cpp: as little as a program can do with the library and still link all of it.
#include <headrace/engine.hpp>
#include <headrace/version.hpp>

#include <cstdio>

int main() {
  headrace::Engine engine(headrace::Settings{});
  engine.add_group("g", {{"w", headrace::DType::kF32, {4}}});
  engine.freeze();
  const auto parameters = static_cast<unsigned long long>(engine.plan().parameters);
  std::printf("headrace %s: %llu parameters planned\n", headrace::version(), parameters);
}
