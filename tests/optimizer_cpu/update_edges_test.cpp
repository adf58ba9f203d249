// SPDX-License-Identifier: Apache-2.0
// update_edges_test.cpp: no kernel touches a byte outside its arrays, which here begin and end at
// pages that cannot be read.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>

#include "optimizer_cpu/update_cases.hpp"

namespace headrace::optimizer_cpu {
namespace {
constexpr std::uint64_t kLongest = 520;  // two scale blocks and a little
constexpr std::uint64_t kFarthest = 65;  // elements that an array begins past its page's first
constexpr unsigned char kUntouched = 0x5a;

// Where an array lies on its page.
enum class Place { kAtBegin, kAtEnd, kAnywhere };

// Room for one array, between two pages that cannot be read.
class Fenced {
 public:
  Fenced() {
    void* const all = ::mmap(nullptr, 3 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    first_ = static_cast<std::byte*>(all) + kBytes;
    if (::mprotect(first_, kBytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::memset(first_, kUntouched, kBytes);
  }
  ~Fenced() { ::munmap(first_ - kBytes, 3 * kBytes); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  // Puts `bytes` of `from` there; `offset_bytes` is what kAnywhere means.
  std::byte* put(const void* from, std::uint64_t bytes, Place place, std::uint64_t offset_bytes) {
    std::memset(first_ + begin_, kUntouched, bytes_);
    begin_ = place == Place::kAtBegin ? 0 : place == Place::kAtEnd ? kBytes - bytes : offset_bytes;
    bytes_ = bytes;
    if (bytes > 0) std::memcpy(first_ + begin_, from, bytes);
    return first_ + begin_;
  }
  const std::byte* data() const { return first_ + begin_; }
  std::uint64_t bytes() const { return bytes_; }
  // Of what lies near; what lies far would have to pass it, or the fence.
  bool untouched_around() const {
    const std::uint64_t before = begin_ < kNear ? 0 : begin_ - kNear;
    const std::uint64_t end = begin_ + bytes_;
    const auto is_untouched = [&](std::byte b) { return b == std::byte{kUntouched}; };
    return std::all_of(first_ + before, first_ + begin_, is_untouched) &&
           std::all_of(first_ + end, first_ + std::min(kBytes, end + kNear), is_untouched);
  }

 private:
  static constexpr std::uint64_t kNear = 128;
  // One page, at least 4096.
  static inline const auto kBytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::byte* first_ = nullptr;
  std::uint64_t begin_ = 0, bytes_ = 0;
};

struct FencedArrays {
  static constexpr std::size_t kArrays = 7;
  std::array<Fenced, kArrays> array;  // weight, master, moments, their scales, gradient

  // The first `elements` of `from`, which has kLongest.
  UpdateSpan put(UpdateBuffers& from, std::uint64_t elements, Place place,
                 std::mt19937_64& random) {
    const UpdateSpan whole = from.span();
    UpdateSpan span = whole;
    span.elements = elements;
    const auto put_one = [&](std::size_t i, const void* data, std::uint64_t count,
                             std::uint64_t element_bytes) -> void* {
      const std::uint64_t offset = place == Place::kAnywhere ? 1 + random() % kFarthest : 0;
      std::byte* const at = array[i].put(data, data == nullptr ? 0 : count * element_bytes, place,
                                         offset * element_bytes);
      return data == nullptr ? nullptr : at;
    };
    span.weight = put_one(0, whole.weight, elements, weight_bytes(whole.kind));
    span.master = put_one(1, whole.master, elements, master_bytes(whole.kind));
    for (std::uint32_t k = 0; k < kMaxMoments; ++k) {
      span.moment[k] = put_one(2 + k, whole.moment[k], elements, moment_bytes(whole.codec));
      const std::uint64_t blocks = (elements + kScaleElements - 1) / kScaleElements;
      span.moment_scale[k] =
          static_cast<std::uint8_t*>(put_one(4 + k, whole.moment_scale[k], blocks, 1));
    }
    span.gradient = put_one(6, whole.gradient, elements, size_bytes(whole.gradient_dtype));
    return span;
  }
  bool untouched_around() const {
    return std::ranges::all_of(array, [](const Fenced& one) { return one.untouched_around(); });
  }
  bool operator==(const FencedArrays& other) const {
    for (std::size_t i = 0; i < kArrays; ++i) {
      if (std::memcmp(array[i].data(), other.array[i].data(), array[i].bytes()) != 0) return false;
    }
    return true;
  }
};

// A fault would else say nothing of which update it was.
std::string current_case;
void say_which(int) {
  constexpr char kText[] = "outside its arrays, or as aligned as they are not: ";
  static_cast<void>(!::write(STDERR_FILENO, kText, sizeof(kText) - 1));
  static_cast<void>(!::write(STDERR_FILENO, current_case.data(), current_case.size()));
  static_cast<void>(!::write(STDERR_FILENO, "\n", 1));
  ::_exit(1);
}

class UpdateAtTheEdge : public testing::TestWithParam<MomentCodec> {
 protected:
  void SetUp() override {
    RecordProperty("seed", std::to_string(kSeed));
    before_ = std::signal(SIGSEGV, say_which);
  }
  void TearDown() override { std::signal(SIGSEGV, before_); }

  // One length on every instruction set, at every place.
  void expect_within(UpdateBuffers& input, std::uint64_t elements, const UpdateStep& step) {
    update_reference(expected_.put(input, elements, Place::kAtBegin, random_), step);
    for (const Simd set : kAllSets) {
      if (!runs_here(set)) continue;
      for (const Place place : {Place::kAtBegin, Place::kAtEnd, Place::kAnywhere}) {
        update_function(set)(actual_.put(input, elements, place, random_), step);
        ASSERT_TRUE(actual_ == expected_ && actual_.untouched_around())
            << name_of(set) << " " << text_of(input.of) << ", of which " << elements << " at place "
            << static_cast<int>(place) << " seed " << kSeed;
      }
    }
  }
  std::mt19937_64 random_{kSeed + 8};

 private:
  FencedArrays expected_, actual_;
  void (*before_)(int) = SIG_DFL;
};

// Of two scale blocks only lengths about their edges, where there are none to write.
bool is_tried(MomentCodec codec, std::uint64_t elements) {
  if (elements <= 130) return true;
  return elements >= 250 && (has_scales(codec) || elements % 16 == 1);
}

TEST_P(UpdateAtTheEdge, TouchesNothingElseAtAnyLengthAndStart) {
  for_every_case([&](UpdateCase of) {
    if (of.codec != GetParam()) return;
    of.elements = kLongest;
    // The last elements are of the next random block, which begins amid a vector where it may.
    of.first_element = 65536 - (has_scales(of.codec) ? 512 : 507);
    UpdateBuffers input(of);
    fill(input, random_, 1);
    const UpdateStep step = ordinary_step(of.rule);
    current_case = text_of(of);
    for (std::uint64_t elements = 0; elements <= kLongest; ++elements) {
      if (is_tried(of.codec, elements)) expect_within(input, elements, step);
      if (HasFatalFailure()) return;
    }
  });
}

std::string codec_name(const testing::TestParamInfo<MomentCodec>& info) {
  return name_of(info.param);
}
INSTANTIATE_TEST_SUITE_P(EveryCodec, UpdateAtTheEdge, testing::ValuesIn(kAllCodecs), codec_name);
}  // namespace
}  // namespace headrace::optimizer_cpu
