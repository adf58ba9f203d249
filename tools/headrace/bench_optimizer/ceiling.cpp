// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/ceiling.hpp"

#include <array>
#include <span>

namespace headrace::tools {
namespace {
void add_kinds(std::vector<CeilingKind>& kinds, Simd set, const MemoryLoops& loops) {
  if (kinds.size() >= 6 || !kernels::runs_here(set)) return;
  const std::string name = set == Simd::kScalar ? "baseline" : name_of(set);
  kinds.push_back({"xor " + name, loops.xor_words, false});
  kinds.push_back({"multiply " + name, loops.multiply, false});
  kinds.push_back({"xor " + name + ", abreast", loops.xor_words, true});
}
}  // namespace

std::vector<CeilingKind> ceiling_kinds() {
  std::vector<CeilingKind> kinds;
#if defined(__x86_64__)
  add_kinds(kinds, Simd::kAvx512, memory_loops_avx512());
  add_kinds(kinds, Simd::kAvx2, memory_loops_avx2());
#endif
  add_kinds(kinds, Simd::kScalar, memory_loops_baseline());
  return kinds;
}

double run_in_place(const CeilingKind& kind, const std::vector<Stream>& streams,
                    const StateMemory& memory, Gang& gang, std::uint32_t threads) {
  constexpr std::uint32_t kLeastPiece = 64;  // scales are a byte per 256 elements
  const auto pass_over = [&](std::uint64_t chunk) {
    std::array<std::span<std::byte>, kMostStreams> abreast;
    std::array<std::uint32_t, kMostStreams> piece{};
    std::size_t count = 0;
    for (const Stream& stream : streams) {
      const std::span<std::byte> bytes = memory.chunk(stream, chunk);
      if (kind.abreast && stream.bytes_per_scale >= kLeastPiece) {
        piece[count] = stream.bytes_per_scale;
        abreast[count++] = bytes;
      } else {
        kind.pass(bytes.data(), bytes.size());
      }
    }
    const std::uint64_t blocks = count > 0 ? abreast[0].size() / piece[0] : 0;
    for (std::uint64_t block = 0; block < blocks; ++block) {
      for (std::size_t s = 0; s < count; ++s)
        kind.pass(abreast[s].data() + block * piece[s], piece[s]);
    }
  };
  return gang.run(threads, memory.chunks(), pass_over);
}
}  // namespace headrace::tools
