// SPDX-License-Identifier: Apache-2.0
// rank_comparison.cpp: freeze's comparison: groups, parameters, hyperparameters, traits and
// settings are those of rank 0, or the error names the first that is not. And a step's: its
// options, hyperparameters that were changed since, step counts.
//
// Both compare numbers, of which text and structs are hashes: what differs is on every rank, so
// that each can name it from its own registry. Two ranks, the second with another weight decay for
// 'h.0.b', compare four numbers of each parameter at freeze:
//
//             'h.0.w'                    'h.0.b'
//   rank 0    shape update group frozen  shape update  group frozen
//   rank 1    shape update group frozen  shape update' group frozen
//                                              ^ number 5: of parameter 5 / 4, its number 5 % 4
//
//   both say  parameter 'h.0.b' has other hyperparameters on rank 1 than on rank 0
//
// A step sends one number instead, a hash of all its terms; only where that differs do the ranks
// compare the terms one by one, to name the one.
#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "headrace/error.hpp"
#include "kernels/hash.hpp"
#include "ranks/rank_calls.hpp"

namespace headrace::ranks {
namespace {
std::uint64_t hash_of(const std::string& text) {
  return kernels::xxh3_64(std::as_bytes(std::span(text)), 0);
}
template <class T, std::size_t kCount>
std::uint64_t hash_of(const std::array<T, kCount>& numbers, std::uint64_t seed = 0) {
  return kernels::xxh3_64(std::as_bytes(std::span(numbers)), seed);
}

std::uint64_t shape_hash(const partition::RegisteredParameter& parameter) {
  std::string text = parameter.full_name + "\n" + name_of(parameter.spec.dtype);
  for (const std::int64_t size : parameter.spec.shape) text += "\n" + std::to_string(size);
  return hash_of(text);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// The value of a setting among lines "path = value".
std::string value_in(const std::vector<std::string>& lines, const std::string& path) {
  for (const std::string& line : lines) {
    if (line.starts_with(path + " = ")) return line.substr(path.size() + 3);
  }
  return "not set";
}

// The first setting that differs, in rank 0's order; those that rank 0 lacks come last.
std::string difference_of(const std::string& of_rank_0, const std::string& of_other,
                          std::uint32_t other) {
  const std::vector<std::string> first = lines_of(of_rank_0), second = lines_of(of_other);
  for (const auto& lines : {first, second}) {
    for (const std::string& line : lines) {
      const std::string path = line.substr(0, line.find(" = "));
      const std::string a = value_in(first, path), b = value_in(second, path);
      if (a == b) continue;
      return "rank " + std::to_string(other) + " has other settings than rank 0: " + path + " is " +
             b + " there, on rank 0 it is " + a;
    }
  }
  return "rank " + std::to_string(other) + " has other settings than rank 0";
}

std::string on_rank(std::uint32_t rank) {
  return " on rank " + std::to_string(rank) + " than on rank 0";
}
}  // namespace

std::optional<RankCalls::Difference> RankCalls::compare(std::string_view what,
                                                        std::span<const std::uint64_t> mine) {
  std::vector<std::uint64_t> all(mine.size() * collective_.world_size());
  collective_.exchange(next(what), std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
  for (std::size_t at = mine.size(); at < all.size(); ++at) {
    const std::size_t index = at % mine.size();
    if (all[at] == all[index]) continue;
    return Difference{static_cast<std::uint32_t>(at / mine.size()), index, all[at], all[index]};
  }
  return std::nullopt;
}

std::string RankCalls::difference_in_counts(std::span<const Counts> all) const {
  const auto text = [](std::size_t rank, std::uint64_t count, const char* what,
                       std::uint64_t of_rank_0) {
    return "rank " + std::to_string(rank) + " registered " + std::to_string(count) + what +
           ", rank 0 " + std::to_string(of_rank_0);
  };
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r].groups != all[0].groups) return text(r, all[r].groups, " groups", all[0].groups);
    if (all[r].parameters != all[0].parameters)
      return text(r, all[r].parameters, " parameters", all[0].parameters);
  }
  return {};
}

std::string RankCalls::difference_in_groups() {
  constexpr std::size_t kOfParameter = 4, kOfGroup = 3;
  std::vector<std::uint64_t> mine;
  for (std::uint32_t i = 0; i < registry_.parameters().size(); ++i) {
    const partition::RegisteredParameter& parameter = registry_.parameter({i});
    mine.insert(mine.end(), {shape_hash(parameter), update_hash({i}), parameter.group.index,
                             parameter.spec.frozen});
  }
  const std::size_t of_parameters = mine.size();
  for (const partition::RegisteredGroup& group : registry_.groups())
    mine.insert(mine.end(), {hash_of(group.name), group.keep_bound, group.repeated_gradients});
  const auto at = compare("freeze: groups", mine);
  if (!at) return {};
  if (at->index < of_parameters) {
    constexpr const char* kWhat[] = {"another name, type or shape", "other hyperparameters",
                                     "another group", "another ParameterSpec::frozen"};
    const auto index = static_cast<std::uint32_t>(at->index / kOfParameter);
    return "parameter '" + registry_.parameter({index}).full_name + "' has " +
           kWhat[at->index % kOfParameter] + on_rank(at->rank);
  }
  constexpr const char* kWhat[] = {"another name", "another keep_bound()",
                                   "another expect_repeated_gradients()"};
  const auto index = static_cast<std::uint32_t>((at->index - of_parameters) / kOfGroup);
  return "group '" + registry_.group({index}).name + "' has " +
         kWhat[(at->index - of_parameters) % kOfGroup] + on_rank(at->rank);
}

// Texts are exchanged only where they differ.
std::string RankCalls::difference_in_settings(const std::string& mine,
                                              std::span<const Counts> all) {
  const auto same = [&](const Counts& one) {
    return one.settings_bytes == all[0].settings_bytes && one.settings_hash == all[0].settings_hash;
  };
  const auto other = std::ranges::find_if_not(all, same);
  if (other == all.end()) return {};
  const std::uint64_t most = std::ranges::max(all, {}, &Counts::settings_bytes).settings_bytes;
  std::string own = mine, texts(most * all.size(), '\0');
  own.resize(most);
  collective_.exchange(next("freeze: settings"), std::as_bytes(std::span(own)),
                       std::as_writable_bytes(std::span(texts)));
  const auto text_of = [&](std::size_t rank) {
    return texts.substr(rank * most, all[rank].settings_bytes);
  };
  const auto rank = static_cast<std::uint32_t>(other - all.begin());
  return difference_of(text_of(0), text_of(rank), rank);
}

std::uint64_t RankCalls::update_hash(ParameterId id) const {
  // Named one and all: with a new one this does not compile.
  const auto& [scale, beta1, beta2, eps, weight_decay, momentum, dampening, rate_decay, nesterov,
               bias_correction, maximize] =
      registry_.hyperparameters(registry_.parameter(id).spec.hyperparameters);
  const std::uint32_t flags =
      (nesterov ? 1u : 0u) | (bias_correction ? 2u : 0u) | (maximize ? 4u : 0u);
  return hash_of(
      std::array{scale, beta1, beta2, eps, weight_decay, momentum, dampening, rate_decay}, flags);
}

// In every step of several ranks: allocates nothing.
std::uint64_t RankCalls::terms_hash(const StepTerms& terms) const {
  std::uint64_t hash = hash_of(std::array{terms.options.learning_rate, terms.options.gradient_scale,
                                          terms.options.max_norm});
  for (std::uint32_t i = 0; i < terms.step_counts.size(); ++i)
    hash = hash_of(std::array{update_hash({i}), terms.step_counts[i]}, hash);
  return kernels::xxh3_64(std::as_bytes(terms.gathers), hash);
}

std::string RankCalls::difference_in_terms(const StepTerms& mine) {
  constexpr std::size_t kOfOptions = 3, kOfGathers = 2, kOfParameter = 2;
  std::vector<std::uint64_t> terms;
  for (const float option :
       {mine.options.learning_rate, mine.options.gradient_scale, mine.options.max_norm})
    terms.push_back(std::bit_cast<std::uint32_t>(option));
  terms.push_back(mine.gathers.size());
  terms.push_back(kernels::xxh3_64(std::as_bytes(mine.gathers), 0));
  for (std::uint32_t i = 0; i < mine.step_counts.size(); ++i)
    terms.insert(terms.end(), {update_hash({i}), mine.step_counts[i]});
  const Difference at = compare("step: what differs", terms).value_or(Difference{});
  if (at.index < kOfOptions) {
    constexpr const char* kWhat[] = {"learning_rate", "gradient_scale", "max_norm"};
    return std::string("step: ") + kWhat[at.index] + " is another" + on_rank(at.rank);
  }
  if (at.index == kOfOptions) {
    return "step: rank " + std::to_string(at.rank) + " has made " + std::to_string(at.value) +
           " gathers since the last step, and rank 0 " + std::to_string(at.of_rank_0);
  }
  if (at.index < kOfOptions + kOfGathers)
    return "step: the groups gathered since the last step were others" + on_rank(at.rank);
  const std::size_t of_parameters = at.index - kOfOptions - kOfGathers;
  const auto index = static_cast<std::uint32_t>(of_parameters / kOfParameter);
  const partition::RegisteredParameter& parameter = registry_.parameter({index});
  if (of_parameters % kOfParameter == 1) {
    return "step: the step count of '" + parameter.full_name + "' is another" + on_rank(at.rank) +
           ", " + std::to_string(at.value) + " and not " + std::to_string(at.of_rank_0);
  }
  return "step: hyperparameter set " + std::to_string(parameter.spec.hyperparameters.index) +
         ", that of '" + parameter.full_name + "', has other values" + on_rank(at.rank);
}

void RankCalls::refuse_terms(const StepTerms& mine) {
  const std::string text = difference_in_terms(mine) +
                           ": no rank updated anything, and no further call will be carried out; "
                           "make the same calls and changes on every rank, between the same steps";
  end_all(text);
}

void RankCalls::compare_registration(const std::string& settings) {
  if (collective_.world_size() == 1) return;
  const Counts mine{registry_.groups().size(), registry_.parameters().size(), settings.size(),
                    hash_of(settings)};
  std::vector<Counts> all(collective_.world_size());
  collective_.exchange(next("freeze: counts"), std::as_bytes(std::span(&mine, 1)),
                       std::as_writable_bytes(std::span(all)));
  std::string difference = difference_in_counts(all);
  if (difference.empty()) difference = difference_in_groups();
  if (difference.empty()) difference = difference_in_settings(settings, all);
  if (difference.empty()) return;
  throw Error(Code::kPeerLost, "freeze: " + difference +
                                   ": no rank is frozen; register the same groups and give the "
                                   "same settings on every rank");
}

std::uint32_t RankCalls::least(std::uint32_t mine) {
  std::vector<std::uint32_t> all(collective_.world_size());
  collective_.exchange(next("freeze: what every rank has room for"),
                       std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return *std::ranges::min_element(all);
}
}  // namespace headrace::ranks
