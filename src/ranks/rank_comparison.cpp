// SPDX-License-Identifier: Apache-2.0
// rank_comparison.cpp: freeze's comparison: groups, parameters, hyperparameters, traits and
// settings are those of rank 0, or the error names the first that is not. And a step's: its
// options, hyperparameters that were changed since, step counts.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <initializer_list>
#include <span>

#include "headrace/error.hpp"
#include "kernels/hash.hpp"
#include "ranks/rank_calls.hpp"

namespace headrace::ranks {
namespace {
// 48 bits of a hash: exact in a double, and in a sum with zeros.
class Fingerprint {
 public:
  Fingerprint& add(const std::string& text) {
    hash_.update(std::as_bytes(std::span(text)));
    hash_.update(std::as_bytes(std::span("\n", 1)));
    return *this;
  }
  double value() const {
    return static_cast<double>(std::strtoull(hash_.hex().substr(0, 12).c_str(), nullptr, 16));
  }

 private:
  kernels::Hash128 hash_;
};

double of_shape(const partition::RegisteredParameter& parameter) {
  Fingerprint print;
  print.add(parameter.full_name).add(name_of(parameter.spec.dtype));
  for (const std::int64_t size : parameter.spec.shape) print.add(std::to_string(size));
  return print.value();
}
double of_update(const Hyperparameters& values) {
  const float fields[] = {values.learning_rate_scale, values.beta1, values.beta2, values.eps,
                          values.weight_decay};
  Fingerprint print;
  for (const float field : fields) print.add(std::to_string(std::bit_cast<std::uint32_t>(field)));
  return print.value();
}

// Scatters every bit: a bijection.
std::uint64_t scatter(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}
std::uint64_t with(std::uint64_t print, std::uint64_t value) {
  return scatter(print + 0x9e3779b97f4a7c15ull + scatter(value));
}
std::uint64_t with(std::uint64_t print, std::initializer_list<float> values) {
  for (const float value : values) print = with(print, std::bit_cast<std::uint32_t>(value));
  return print;
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

// The first rank and value that differ from rank 0's; none: {0, 0}.
struct Place {
  std::uint32_t rank = 0;
  std::size_t index = 0;
};
Place first_difference(const std::vector<double>& values, std::uint32_t world_size) {
  const std::size_t each = values.size() / world_size;
  for (std::uint32_t r = 1; r < world_size; ++r) {
    for (std::size_t i = 0; i < each; ++i) {
      if (values[r * each + i] != values[i]) return {r, i};
    }
  }
  return {};
}
std::string number(double value) { return std::to_string(static_cast<std::uint64_t>(value)); }
}  // namespace

std::string RankCalls::difference_in_counts(std::vector<double>& values,
                                            std::size_t setting_lines) {
  const double mine[] = {static_cast<double>(registry_.groups().size()),
                         static_cast<double>(registry_.parameters().size()),
                         static_cast<double>(setting_lines)};
  exchange("freeze: counts", mine, values);
  const Place at = first_difference(values, collective_.world_size());
  if (at.rank == 0) return {};
  const std::string rank = "rank " + std::to_string(at.rank);
  if (at.index == 2) return rank + " has other settings than rank 0";
  const char* const what = at.index == 0 ? " groups" : " parameters";
  return rank + " registered " + number(values[at.rank * std::size(mine) + at.index]) + what +
         ", rank 0 " + number(values[at.index]);
}

std::string RankCalls::difference_in_groups(std::vector<double>& values) {
  constexpr std::size_t kOfParameter = 4, kOfGroup = 3;
  std::vector<double> mine;
  for (const partition::RegisteredParameter& parameter : registry_.parameters()) {
    mine.push_back(of_shape(parameter));
    mine.push_back(of_update(registry_.hyperparameters(parameter.spec.hyperparameters)));
    mine.push_back(parameter.group.index);
    mine.push_back(parameter.spec.frozen ? 1 : 0);
  }
  for (const partition::RegisteredGroup& group : registry_.groups()) {
    mine.push_back(Fingerprint().add(group.name).value());
    mine.push_back(group.keep_bound ? 1 : 0);
    mine.push_back(group.repeated_gradients ? 1 : 0);
  }
  exchange("freeze: groups", mine, values);
  const Place at = first_difference(values, collective_.world_size());
  if (at.rank == 0) return {};
  const std::string rank = "rank " + std::to_string(at.rank);
  const std::size_t of_parameters = kOfParameter * registry_.parameters().size();
  if (at.index < of_parameters) {
    constexpr const char* kWhat[] = {"another name, type or shape", "other hyperparameters",
                                     "another group", "another ParameterSpec::frozen"};
    const auto index = static_cast<std::uint32_t>(at.index / kOfParameter);
    return "parameter '" + registry_.parameter({index}).full_name + "' has " +
           kWhat[at.index % kOfParameter] + " on " + rank + " than on rank 0";
  }
  constexpr const char* kWhat[] = {"another name", "another keep_bound()",
                                   "another expect_repeated_gradients()"};
  const auto index = static_cast<std::uint32_t>((at.index - of_parameters) / kOfGroup);
  return "group '" + registry_.group({index}).name + "' has " +
         kWhat[(at.index - of_parameters) % kOfGroup] + " on " + rank + " than on rank 0";
}

std::string RankCalls::difference_in_settings(std::vector<double>& values,
                                              const std::vector<std::string>& lines) {
  std::vector<double> mine;
  for (const std::string& line : lines) mine.push_back(Fingerprint().add(line).value());
  exchange("freeze: settings", mine, values);
  const Place at = first_difference(values, collective_.world_size());
  if (at.rank == 0) return {};
  const std::string& line = lines[at.index];
  return "rank " + std::to_string(at.rank) + " has other settings than rank 0; on this rank (" +
         std::to_string(collective_.rank()) + ") it is " +
         line.substr(std::min(line.find_first_not_of(' '), line.size()));
}

// In every step of several ranks: allocates nothing.
double RankCalls::print_of(const StepTerms& terms) const {
  std::uint64_t print =
      with(0, {terms.options.learning_rate, terms.options.gradient_scale, terms.options.max_norm});
  for (std::size_t i = 0; i < terms.step_counts.size(); ++i) {
    const ParameterSpec& spec = registry_.parameter({static_cast<std::uint32_t>(i)}).spec;
    const Hyperparameters& v = registry_.hyperparameters(spec.hyperparameters);
    print = with(print, {v.learning_rate_scale, v.beta1, v.beta2, v.eps, v.weight_decay});
    print = with(print, terms.step_counts[i]);
  }
  return static_cast<double>(print >> 16);  // exact
}

std::string RankCalls::difference_in_terms(const StepTerms& mine) {
  constexpr std::size_t kOfOptions = 3, kOfParameter = 2;
  std::vector<double> values,
      terms{mine.options.learning_rate, mine.options.gradient_scale, mine.options.max_norm};
  for (std::uint32_t i = 0; i < mine.step_counts.size(); ++i) {
    terms.push_back(
        of_update(registry_.hyperparameters(registry_.parameter({i}).spec.hyperparameters)));
    terms.push_back(static_cast<double>(mine.step_counts[i]));
  }
  exchange("step: what differs", terms, values);
  const Place at = first_difference(values, collective_.world_size());
  const std::string ranks = " on rank " + std::to_string(at.rank) + " than on rank 0";
  if (at.index < kOfOptions) {
    constexpr const char* kWhat[] = {"learning_rate", "gradient_scale", "max_norm"};
    return std::string("step: ") + kWhat[at.index] + " is another" + ranks;
  }
  const auto index = static_cast<std::uint32_t>((at.index - kOfOptions) / kOfParameter);
  const partition::RegisteredParameter& parameter = registry_.parameter({index});
  if ((at.index - kOfOptions) % kOfParameter == 1) {
    return "step: the step count of '" + parameter.full_name + "' is another" + ranks + ", " +
           number(values[at.rank * terms.size() + at.index]) + " and not " +
           number(values[at.index]);
  }
  return "step: hyperparameter set " + std::to_string(parameter.spec.hyperparameters.index) +
         ", that of '" + parameter.full_name + "', has other values" + ranks;
}

void RankCalls::refuse_terms(const StepTerms& mine) {
  const std::string text = difference_in_terms(mine) +
                           ": no rank updated anything, and no further call will be carried out; "
                           "make the same changes on every rank, between the same steps";
  collective_.abort(text);
  throw Error(Code::kPeerLost, text);
}

void RankCalls::compare_registration(const Settings& settings) {
  if (collective_.world_size() == 1) return;
  const std::vector<std::string> lines = lines_of(settings.to_json());
  std::vector<double> values;
  std::string difference = difference_in_counts(values, lines.size());
  if (difference.empty()) difference = difference_in_groups(values);
  if (difference.empty()) difference = difference_in_settings(values, lines);
  if (difference.empty()) return;
  throw Error(Code::kPeerLost, "freeze: " + difference +
                                   ": no rank is frozen; register the same groups and give the "
                                   "same settings on every rank");
}
}  // namespace headrace::ranks
