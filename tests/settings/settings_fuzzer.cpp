// SPDX-License-Identifier: Apache-2.0
// libFuzzer on the reader of settings: bytes, and the structure of what is JSON. By hand:
//   tests/settings/fuzz 10000000
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "reading_fault.hpp"
#include "structure_mutator.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const headrace::settings::ReadingFault reading = headrace::settings::fault_of_reading(text);
  if (!reading.fault.empty()) {
    std::fprintf(stderr, "%s\n", reading.fault.c_str());
    std::abort();
  }
  return 0;
}

// Half of all changes are of keys and values, where the text is JSON.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  if (seed % 2 == 0) return LLVMFuzzerMutate(data, size, most);
  const headrace::settings::Document document = headrace::settings::parse_document(
      std::string_view(reinterpret_cast<const char*>(data), size),
      headrace::settings::Syntax::kRelaxed);
  if (!document.parsed) return LLVMFuzzerMutate(data, size, most);
  const std::string text = headrace::settings::StructureMutator(seed).mutate(document.value).dump();
  if (text.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}
