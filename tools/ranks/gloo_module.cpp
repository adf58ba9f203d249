// SPDX-License-Identifier: Apache-2.0
// gloo_module.cpp: ranks over torch's Gloo.
#include <headrace/torch/gloo.hpp>
#include <vector>

#include "ranks/rank_module.hpp"

namespace headrace::tools {
namespace {
// torch reads the memory of what is given, and writes that of what is taken.
at::Tensor bytes_at(const void* data, std::uint64_t size_bytes) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(size_bytes)}, at::kByte);
}

// A group of its own, beside the transport's: through the store that the transport has made.
c10::intrusive_ptr<c10d::ProcessGroupGloo> raw_group(Launch launch) {
  launch.agent_serves_store = true;
  const torch::GlooOptions options;
  torch::detail::JoinWait wait(options.join_within, options.warn, options.interrupted);
  torch::detail::PatientCalls calls;
  const auto group = c10d::ProcessGroupGloo::Options::create(options.join_within);
  group->devices.push_back(torch::detail::gloo_device(launch, options));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(
          "headrace-raw/" + launch.attempt,
          torch::detail::open_store(launch, calls, wait, options.join_within)),
      static_cast<int>(launch.rank), static_cast<int>(launch.world_size), group);
}

class RawGloo final : public RawCalls {
 public:
  explicit RawGloo(const Launch& launch)
      : rank_(launch.rank), world_size_(launch.world_size), group_(raw_group(launch)) {}
  Names names() const noexcept override {
    return {"_allgather_base", "alltoall_base", "_allgather_base"};
  }
  std::string all_gather(void* whole, std::uint64_t piece_bytes) noexcept override {
    return exchange(static_cast<std::byte*>(whole) + rank_ * piece_bytes, whole, piece_bytes);
  }
  std::string all_to_all(const void* give, void* take,
                         std::uint64_t piece_bytes) noexcept override {
    return text_of([&] {
      // torch takes them away, each for itself.
      std::vector<std::int64_t> given(world_size_, static_cast<std::int64_t>(piece_bytes));
      given[rank_] = 0;
      std::vector<std::int64_t> taken = given;
      const std::uint64_t size = (world_size_ - 1) * piece_bytes;
      at::Tensor to = bytes_at(take, size), from = bytes_at(give, size);
      group_->alltoall_base(to, from, taken, given)->wait();
    });
  }
  std::string exchange(const void* mine, void* all, std::uint64_t size_bytes) noexcept override {
    return text_of([&] {
      at::Tensor to = bytes_at(all, world_size_ * size_bytes), from = bytes_at(mine, size_bytes);
      group_->_allgather_base(to, from)->wait();
    });
  }

 private:
  template <class Call>
  static std::string text_of(const Call& call) noexcept try {
    call();
    return "";
  } catch (const std::exception& error) {
    return torch::detail::first_line(error);
  }

  const std::uint32_t rank_, world_size_;
  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

std::shared_ptr<Transport> join(const Launch& launch, const CollectiveOptions& ranks,
                                RankModule::Failure& failure) noexcept {
  return without_exceptions(failure, [&] {
    return torch::make_gloo_transport(
        launch,
        {.join_within = ranks.deadline, .warn = ranks.warn, .interrupted = ranks.interrupted});
  });
}

std::unique_ptr<RawCalls> make_raw_calls(const Launch& launch,
                                         RankModule::Failure& failure) noexcept {
  return without_exceptions(
      failure, [&]() -> std::unique_ptr<RawCalls> { return std::make_unique<RawGloo>(launch); });
}
}  // namespace
}  // namespace headrace::tools

extern "C" {
extern const headrace::tools::RankModule headrace_rank_module;
const headrace::tools::RankModule headrace_rank_module = {
    headrace::tools::join, headrace::tools::make_raw_calls, [](int) noexcept {}};

int headrace_rank_module_version(int* version);
int headrace_rank_module_version(int* version) {
  *version = 10'000 * TORCH_VERSION_MAJOR + 100 * TORCH_VERSION_MINOR + TORCH_VERSION_PATCH;
  return 0;
}
}
