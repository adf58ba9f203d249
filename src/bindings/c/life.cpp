// SPDX-License-Identifier: Apache-2.0
// life.cpp: headrace/c.h from version and create to close and destroy.
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/c/calls.hpp"
#include "bindings/c/handles_of_c.hpp"
#include "bindings/c/host_tables.hpp"
#include "bindings/c/reports.hpp"
#include "headrace/cuda.hpp"
#include "headrace/version.hpp"

namespace headrace::bindings {
constinit EngineHandles engines(1, "engine", "destroy");
constinit LeaseHandles leases(2, "gathered", "release");

namespace {
constexpr std::uint32_t kVersion =
    HEADRACE_VERSION_MAJOR * 1'000'000u + HEADRACE_VERSION_MINOR * 1'000u + HEADRACE_VERSION_PATCH;
static_assert(HEADRACE_C_VERSION == kVersion, "c.h and version.hpp name different versions");
static_assert(HEADRACE_FAILED == static_cast<int>(Code::kFailed));
static_assert(HEADRACE_EXP_AVG_SQ == static_cast<int>(Content::kExpAvgSq));
static_assert(HEADRACE_LOG_ERROR == static_cast<int>(LogLevel::kError));

constexpr std::size_t kFirstOptionsBytes = offsetof(headrace_engine_options, cuda);

// 0.1.3 and 0.1.0 understand each other, 0.1 and 0.2 do not, 1.0 and 1.2 do.
bool compatible(std::uint32_t header) {
  const std::uint32_t major = HEADRACE_VERSION_MAJOR;
  if (header / 1'000'000 != major) return false;
  return major > 0 || header / 1'000 == kVersion / 1'000;
}

std::string version_text(std::uint32_t version) {
  return std::to_string(version / 1'000'000) + "." + std::to_string(version / 1'000 % 1'000) + "." +
         std::to_string(version % 1'000);
}

Settings settings_of(const headrace_engine_options& options) {
  std::vector<std::string> overrides;
  if (options.override_count > 0) require(options.overrides, "options.overrides");
  if (options.override_count > 65'536) {
    refuse("options.override_count is " + std::to_string(options.override_count) +
           ", 65536 is the most; the struct is set up by its _init()");
  }
  for (std::size_t i = 0; i < options.override_count; ++i) {
    overrides.emplace_back(&required(options.overrides[i], "an entry of options.overrides"));
  }
  if (options.settings_json != nullptr && options.settings_file != nullptr) {
    refuse("options gives both settings_json and settings_file; give one");
  }
  if (options.settings_file != nullptr) {
    return Settings::from_file(options.settings_file, overrides);
  }
  if (options.settings_json == nullptr && overrides.empty()) return {};  // nothing is asked for
  const char* text = options.settings_json != nullptr ? options.settings_json : "{}";
  return Settings::from_json(text, "settings_json", overrides);
}

std::shared_ptr<Device> make_cuda_device_of(const headrace_cuda* from) {
  const headrace_cuda given = taken(from, headrace_cuda{}, "cuda");
  CudaOptions options;
  options.ordinal = given.ordinal;
  options.host_threads = given.host_threads;
  options.allocator = {given.allocator_context, given.allocate, given.deallocate};
  return make_cuda_device(options);
}

std::shared_ptr<LogQueue> log_queue_of(const headrace_engine_options& options) {
  if (options.kept_log_lines == 0) return nullptr;
  if (options.log != nullptr) refuse("options gives both log and kept_log_lines; give one");
  if (options.kept_log_lines > 65'536) {
    refuse("options.kept_log_lines is " + std::to_string(options.kept_log_lines) +
           ", 65536 is the most; give fewer, and take the lines more often");
  }
  return std::make_shared<LogQueue>(options.kept_log_lines);
}

LogSink log_sink_of(const headrace_engine_options& options,
                    const std::shared_ptr<LogQueue>& queue) {
  if (queue != nullptr)
    return [queue](LogLevel level, std::string_view text) { queue->add(level, text); };
  if (options.log == nullptr) return nullptr;
  return [log = options.log, context = options.log_context](LogLevel level, std::string_view text) {
    log(context, static_cast<std::int32_t>(level), std::string(text).c_str());
  };
}

EngineOptions engine_options_of(const headrace_engine_options& options) {
  EngineOptions result;
  if (options.device != nullptr && options.cuda != nullptr)
    refuse("options gives both device and cuda; give one");
  if (options.device != nullptr) result.device = make_host_device(options.device);
  if (options.cuda != nullptr) result.device = make_cuda_device_of(options.cuda);
  if (options.collective != nullptr) result.collective = make_host_collective(options.collective);
  if (options.poll != nullptr) {
    result.poll = [poll = options.poll, context = options.poll_context] {
      return poll(context) != 0;
    };
  }
  return result;
}

void create(const headrace_engine_options* given, headrace_engine** out_engine) {
  require(out_engine, "out_engine");
  const headrace_engine_options options =
      taken_or_defaults(given, headrace_engine_options_init, "options", kFirstOptionsBytes);
  if (!compatible(options.header_version)) {
    throw Error(Code::kUnsupported,
                "the program was compiled with headrace/c.h " +
                    version_text(options.header_version) + ", the library it runs with is " +
                    version() + "; compile it with that library's header, or link the other");
  }
  const Settings settings = settings_of(options);
  const std::shared_ptr<LogQueue> queue = log_queue_of(options);
  EngineOptions engine_options = engine_options_of(options);
  engine_options.log = log_sink_of(options, queue);
  std::unique_ptr<EngineOfC> engine(
      new EngineOfC{queue, Engine(settings, std::move(engine_options)), settings.to_json()});
  *out_engine = static_cast<headrace_engine*>(engines.add(std::move(engine)));
}
// Writes the oldest line that is kept, or nothing and the size 0.
void take_log(LogQueue* queue, std::int32_t& level, char* buffer, std::size_t capacity,
              std::size_t& needed) {
  if (queue == nullptr)
    refuse("this engine keeps no log lines; create it with kept_log_lines above 0");
  const bool found = queue->offer([&](const LogQueue::Line& line) {
    level = static_cast<std::int32_t>(line.level);
    give_text(line.text, buffer, capacity, &needed);
    return capacity > 0;
  });
  if (!found) needed = 0;
}
}  // namespace
}  // namespace headrace::bindings

using namespace headrace::bindings;

uint32_t headrace_version(void) { return kVersion; }
const char* headrace_version_text(void) { return headrace::version(); }

const char* headrace_code_name(headrace_code code) {
  if (code < HEADRACE_OK || code > HEADRACE_FAILED) return "unknown code";
  return headrace::code_name(static_cast<headrace::Code>(code));
}

int32_t headrace_is_refusal(headrace_code code) {
  if (code < HEADRACE_OK || code > HEADRACE_FAILED) return 0;
  return headrace::is_refusal(static_cast<headrace::Code>(code)) ? 1 : 0;
}

headrace_code headrace_cuda_missing(char* buffer, size_t capacity, size_t* out_needed,
                                    headrace_error* error) {
  return guarded(error,
                 [&] { give_text(headrace::cuda_facts().missing, buffer, capacity, out_needed); });
}

headrace_code headrace_engine_create(const headrace_engine_options* options,
                                     headrace_engine** out_engine, headrace_error* error) {
  return guarded(error, [&] { create(options, out_engine); });
}
headrace_code headrace_engine_destroy(headrace_engine* engine, headrace_error* error) {
  return guarded(error, [&] {
    if (engine == nullptr) return;
    engines.remove(engine, [](EngineOfC& e) {
      refuse_in_child(e);
      e.engine.close();
    });
  });
}
headrace_code headrace_engine_freeze(headrace_engine* engine, headrace_error* error) {
  return guarded(error, [&] { shape(engine)->freeze(); });
}
headrace_code headrace_engine_close(headrace_engine* engine, headrace_error* error) {
  return guarded(error, [&] { shape(engine)->close(); });
}
headrace_code headrace_engine_sleep(headrace_engine* engine, const char* directory,
                                    headrace_error* error) {
  return guarded(error, [&] {
    run(engine)->sleep(directory == nullptr ? "" : path_in(directory, "directory"));
  });
}
headrace_code headrace_engine_wake(headrace_engine* engine, headrace_error* error) {
  return guarded(error, [&] { run(engine)->wake(); });
}
headrace_code headrace_engine_take_log(headrace_engine* engine, int32_t* out_level, char* buffer,
                                       size_t capacity, size_t* out_needed, headrace_error* error) {
  return guarded(error, [&] {
    const auto used = look(engine);
    take_log(used.log(), required(out_level, "out_level"), buffer, capacity,
             required(out_needed, "out_needed"));
  });
}
headrace_code headrace_engine_interrupt(headrace_engine* engine) {
  return static_cast<headrace_code>(engines.visit(engine, [](EngineOfC& e) {
    if (e.owner != getpid()) return headrace::Code::kWrongState;
    e.engine.interrupt();
    return headrace::Code::kOk;
  }));
}

headrace_code headrace_engine_settings_json(headrace_engine* engine, char* buffer, size_t capacity,
                                            size_t* out_needed, headrace_error* error) {
  return guarded(error, [&] {
    const auto used = look(engine);
    give_text(used.settings_json(), buffer, capacity, out_needed);
  });
}
headrace_code headrace_engine_plan_json(headrace_engine* engine, char* buffer, size_t capacity,
                                        size_t* out_needed, headrace_error* error) {
  return guarded(error,
                 [&] { give_text(to_json(look(engine)->plan()), buffer, capacity, out_needed); });
}
headrace_code headrace_engine_stats_json(headrace_engine* engine, char* buffer, size_t capacity,
                                         size_t* out_needed, headrace_error* error) {
  return guarded(error,
                 [&] { give_text(to_json(look(engine)->stats()), buffer, capacity, out_needed); });
}
