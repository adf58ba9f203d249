// SPDX-License-Identifier: Apache-2.0
// meeting.hpp: a call of several parts, between which the ranks wait for each other.
//
// At the end of a part, each rank gives its words and gets those of all. A rank whose part failed
// gives its error instead: then the call ends on every rank, and the error names that rank. Example
// with two ranks:
//
//   rank 0                           rank 1
//   writes its files                 writes its files: the disk is full
//   meet("written")                  withdraw(error), and throws it: kNoSpace
//   throws kNoSpace "rank 1: ..."
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/error.hpp"
#include "ranks/rank_calls.hpp"

namespace headrace::ranks {
// `Words`: of fixed size, without padding. For one thread. With one rank, nobody is met.
template <class Words>
class Meeting {
 public:
  // `call` names it in errors. The ranks have agreed on it, and make no other call meanwhile.
  Meeting(RankCalls& ranks, std::string call) : ranks_(ranks), call_(std::move(call)) {}

  // Collective. By rank.
  std::vector<Words> meet(const Words& mine) {
    std::vector<Words> words;
    for (const Said& one : exchange({mine, {}})) words.push_back(one.words);
    return words;
  }
  // Runs some parts. If one throws, the other ranks' parts do too.
  template <class Parts>
  void run(const Parts& parts) {
    try {
      parts();
    } catch (...) {
      withdraw(std::current_exception());
      throw;
    }
  }
  // No part follows.
  void end() noexcept { awaited_ = false; }
  // After an error of this rank: if the others wait for it in meet(), they throw it too.
  void withdraw(const std::exception_ptr& error) noexcept {
    if (!awaited_) return;
    try {
      Said said;
      said.fault.failed = 1;
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& cause) {
        if (const auto* const known = dynamic_cast<const Error*>(&cause))
          said.fault.code = known->code();
        const std::string_view text = cause.what();
        std::copy_n(text.data(), std::min(text.size(), said.fault.text.size() - 1),
                    said.fault.text.begin());
      } catch (...) {
        // A program's callback threw something else: the code alone says that this rank failed.
      }
      exchange(said);
    } catch (const std::exception&) {
      // The ranks cannot be reached: they have other ways to learn that this one is gone.
    }
  }

 private:
  struct Fault {
    std::uint32_t failed = 0;
    Code code = Code::kPeerLost;
    std::array<char, 952> text{};
  };
  struct Said {
    Words words{};
    Fault fault{};
  };
  static_assert(sizeof(Said) == sizeof(Words) + sizeof(Fault));

 public:
  static constexpr std::size_t kMessageBytes = sizeof(Said);

 private:
  std::vector<Said> exchange(const Said& mine) {
    Collective& collective = ranks_.collective();
    std::vector<Said> all(collective.world_size(), mine);
    awaited_ = false;  // after an error here nobody waits for this rank
    if (all.size() == 1) return all;
    collective.exchange(ranks_.next(call_), std::as_bytes(std::span(&mine, 1)),
                        std::as_writable_bytes(std::span(all)));
    for (std::size_t r = 0; mine.fault.failed == 0 && r < all.size(); ++r) {
      const Fault& fault = all[r].fault;
      if (fault.failed == 0) continue;
      throw Error(fault.code, call_ + ": rank " + std::to_string(r) + ": " + fault.text.data());
    }
    awaited_ = true;
    return all;
  }

  RankCalls& ranks_;
  const std::string call_;
  bool awaited_ = true;  // the other ranks wait for a message of this one
};
}  // namespace headrace::ranks
