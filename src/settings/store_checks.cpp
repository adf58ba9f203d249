// SPDX-License-Identifier: Apache-2.0
// Checks of headrace.durable: the keys that it needs, and those that mean nothing without it.
#include <string>
#include <string_view>

#include "settings/given.hpp"
#include "settings/values.hpp"

namespace headrace::settings {
namespace {
// A directory's name on every file system, and no hidden one or option. The C library's isalnum()
// would depend on the locale.
bool names_a_store(std::string_view name) {
  constexpr std::size_t kLongestName = 64;
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= kLongestName && name[0] != '.' && name[0] != '-' &&
         name.find_first_not_of(kAllowed) == name.npos;
}

void check_store_name(const GivenValue& store, Report& report) {
  if (!store.value->is_string() || *store.value == "auto") return;  // reported already
  if (names_a_store(store.value->get_ref<const std::string&>())) return;
  report.fault(store.path,
               found_text(*store.value) +
                   ", but directories get this name; allowed: 1 to 64 letters (A-Z, a-z), digits, "
                   "'.', '_' and '-', the first no '.' or '-'");
}

// A user who names a store expects to find the state there later.
void refuse_without_durable(const Given& given, Report& report, const Settings& settings) {
  if (const GivenValue* store = given.find("headrace.store")) {
    report.fault(store->path,
                 "nothing writes this store while headrace.durable is \"none\"; set that to "
                 "\"step\", or remove this");
  }
  if (settings.background_save_bytes_per_second > 0) {
    report.fault(given.find("headrace.background_save_bytes_per_second")->path,
                 "background saves read committed steps, and nothing is committed while "
                 "headrace.durable is \"none\"; set that to \"step\", or remove this");
  }
  if (settings.resume == Resume::kAuto) return;
  report.fault(given.find("headrace.resume")->path,
               "every run starts anew while headrace.durable is \"none\"; set that to \"step\", or "
               "remove this");
}

void refuse_what_breaks_a_store(const Given& given, Report& report, const Settings& settings) {
  if (settings.checksums == Checksums::kOff) {
    report.fault(given.find("headrace.checksums")->path,
                 "without checksums a resumed run would take a write that the drive dropped for "
                 "the state of a committed step (headrace.durable); remove this");
  }
  if (settings.allow_memory_backed) {
    report.fault(given.find("headrace.allow_memory_backed")->path,
                 "memory loses committed steps (headrace.durable) when the machine stops; remove "
                 "this, and name a directory on a drive");
  }
}
}  // namespace

void check_store(const Given& given, Report& report, const Settings& settings) {
  const GivenValue* durable = given.find("headrace.durable");
  const GivenValue* store = given.find("headrace.store");
  if (store != nullptr) check_store_name(*store, report);
  if (durable == nullptr || *durable->value == "none")
    return refuse_without_durable(given, report, settings);
  if (settings.durable_every == 0) return;  // reported already, or left to the trainer
  if (store == nullptr) {
    report.fault(durable->path,
                 "a later run finds the state by the name of its store, and headrace.store gives "
                 "none; add it");
  }
  refuse_what_breaks_a_store(given, report, settings);
}
}  // namespace headrace::settings
