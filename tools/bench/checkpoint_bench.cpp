// SPDX-License-Identifier: Apache-2.0
// checkpoint_bench.cpp: saving and loading a checkpoint, and sleep and wake, against the drives
// alone, and steps beside a background save against steps alone.
//
// A save reads R bytes of the engine's drive and writes W bytes of files; a load does the reverse.
// The drives alone, measured in the same round, need at least max(R/r, W/w) seconds if they are
// two, and R/r + W/w if they are one. Both write to new files, and so do the raw writes. A raw file
// that is read and written back at once shows how near the drive itself comes to that sum. Every
// load is that of a new engine, whose files are not in the page cache. A third engine has all of it
// in memory, sleeps and wakes. A fourth one commits each step to a store. Its steps beside a
// background save are those that end before the save does. They commit nothing.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "base/units.hpp"
#include "bench_program.hpp"
#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "headrace/checkpoint.hpp"
#include "measure/figures.hpp"
#include "measure/rounds.hpp"
#include "measure/statistics.hpp"
#include "platform/machine.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/run_program.hpp"
#include "raw_drive.hpp"
#include "trained_model.hpp"

namespace headrace::tools {
namespace {
namespace fs = std::filesystem;
using command_line::add_number;

constexpr const char* kDescription =
    "Compares save_checkpoint() and load_checkpoint(), with everything on NVMe, with the drives "
    "alone, without\nany work in between: the same bytes at the raw read and write bandwidths of "
    "the same round. Also\ncompares the steps of a durable engine beside a background save with "
    "its steps alone.\n";
constexpr const char* kFooter =
    "\nNeeds about 85 bytes of drive per parameter: the swap files of two engines, a store, a "
    "checkpoint, and\na raw file.\n"
    "\nExit codes: 0 done, 1 the run failed, 2 refused before it started, 128 + n ended by signal "
    "n.\n";

struct Options {
  std::uint64_t parameters = 100'000'000;
  std::uint32_t rounds = 5;
  std::uint64_t save_mib_per_second = 200;
  std::string nvme = ".", to = {}, json = {};
  const std::string& folder() const { return to.empty() ? nvme : to; }
  Settings settings() const {
    Settings settings;
    settings.nvme_paths = {nvme};
    settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kNvme;
    return settings;
  }
  std::string store() const { return "checkpoint-bench-" + std::to_string(::getpid()); }
  Settings durable_settings() const {
    Settings settings = this->settings();
    settings.durable_every = 1;
    settings.store = store();
    settings.background_save_bytes_per_second = save_mib_per_second * base::kMiB;
    return settings;
  }
  Settings settings_in_memory() const {
    Settings settings = this->settings();
    settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kCpu;
    return settings;
  }
};

struct Cost {
  double seconds = 0, cpu_seconds = 0;
  std::uint64_t read_bytes = 0, written_bytes = 0;
};
struct Round {
  RawDrive::Result from_read, from_write, to_read, to_write;  // of the engine's drive, the other
  RawDrive::Result rewrite;  // of the engine's drive: the same bytes read, and written back
  Cost save, load, sleep, wake;
  double step_seconds = 0, step_beside_seconds = 0;
};

std::uint64_t bytes_in(const std::string& folder) {
  std::uint64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(folder)) bytes += file.file_size();
  return bytes;
}

void leave_page_cache(const std::string& folder) {
  for (const auto& file : fs::directory_iterator(folder)) {
    const int fd = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

template <class Work>
Cost measured(Engine& engine, const Work& work) {
  const Stats before = engine.stats();
  const double cpu = cpu_seconds();
  const Stopwatch watch;
  work();
  Cost cost{watch.seconds(), cpu_seconds() - cpu, 0, 0};
  const Stats after = engine.stats();
  cost.read_bytes = after.nvme_read_bytes - before.nvme_read_bytes;
  cost.written_bytes = after.nvme_written_bytes - before.nvme_written_bytes;
  return cost;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        model_(options.settings(), options.parameters),
        resident_(options.settings_in_memory(), options.parameters),
        durable_(std::in_place, options.durable_settings(), options.parameters),
        checkpoint_(options.folder() + "/headrace-checkpoint-bench-" + std::to_string(::getpid())) {
    model_.step();
    save();  // warms up, and gives the number of bytes
    file_bytes_ = bytes_in(checkpoint_);
    fs::remove_all(checkpoint_);
    step_beside_save();
  }
  ~Bench() {
    std::error_code ignored;
    durable_.reset();
    fs::remove_all(
        fmt::format("{}/headrace-{}/store-{}", options_.nvme, ::getuid(), options_.store()),
        ignored);
    fs::remove_all(checkpoint_, ignored);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Round round(bool backwards) {
    Round round;
    run_parts(
        {[&] { measure_raw(options_.nvme, round.from_read, round.from_write, &round.rewrite); },
         [&] {
           round.save = save();
           round.load = load();
         },
         [&] {
           round.sleep = measured(resident_.engine(), [&] { resident_.engine().sleep(); });
           round.wake = measured(resident_.engine(), [&] { resident_.engine().wake(); });
           round.sleep.written_bytes = round.wake.read_bytes = state_bytes();
         },
         [&] {
           run_parts({[&] { round.step_seconds = step_alone(); },
                      [&] { round.step_beside_seconds = step_beside_save(); }},
                     backwards);
         },
         [&] { measure_raw(options_.folder(), round.to_read, round.to_write); }},
        backwards);
    return round;
  }
  std::uint64_t file_bytes() const { return file_bytes_; }
  std::uint64_t state_bytes() const { return model_.engine().plan().nvme_bytes; }
  const std::string& queue() const { return queue_; }
  const std::string& file_system() const { return file_system_; }
  // Of the engines, as they are in a load.
  std::uint64_t planned_bytes() {
    return 2 * model_.engine().plan().host_bytes + resident_.engine().plan().host_bytes +
           durable_->engine().plan().host_bytes;
  }

 private:
  void measure_raw(const std::string& folder, RawDrive::Result& read, RawDrive::Result& write,
                   RawDrive::Result* rewrite = nullptr) {
    constexpr std::uint64_t kExtent = 8 * base::kMiB;
    Settings settings = options_.settings();
    settings.nvme_paths = {folder};
    RawDrive raw({settings, base::align_up(file_bytes_, base::kIoAlignment), kExtent});
    write = raw.creation();
    read = raw.move(swap::IoKind::kRead, write.bytes);
    if (rewrite != nullptr) *rewrite = raw.rewrite(write.bytes);
    queue_ = raw.queue_name();
    file_system_ = raw.path().file_system;
  }
  Cost save() {
    Cost cost = measured(model_.engine(), [&] { save_checkpoint(model_.engine(), checkpoint_); });
    cost.written_bytes = file_bytes_;
    return cost;
  }
  // Both: seconds of a step.
  double step_alone() {
    const Stopwatch watch;
    for (std::uint32_t step = 0; step < steps_beside_; ++step) durable_->step();
    return watch.seconds() / steps_beside_;
  }
  double step_beside_save() {
    const BackgroundSave save = save_checkpoint_in_background(durable_->engine(), checkpoint_);
    const Stopwatch watch;
    double seconds = 0;
    steps_beside_ = 0;
    do {
      durable_->step();
      if (steps_beside_ > 0 && save.done()) break;
      ++steps_beside_;
      seconds = watch.seconds();
    } while (!save.done());
    save.wait();
    fs::remove_all(checkpoint_);
    return seconds / steps_beside_;
  }
  Cost load() {
    leave_page_cache(checkpoint_);
    Engine engine(options_.settings());
    add_transformer_groups(engine, options_.parameters);
    engine.freeze();
    Cost cost = measured(engine, [&] { load_checkpoint(engine, checkpoint_); });
    cost.read_bytes = file_bytes_;
    fs::remove_all(checkpoint_);
    return cost;
  }

  const Options& options_;
  TrainedModel model_, resident_;
  std::optional<TrainedModel> durable_;  // gone before its store is removed
  const std::string checkpoint_;
  std::uint64_t file_bytes_ = 0;
  std::uint32_t steps_beside_ = 0;  // as many as the last background save had beside it
  std::string queue_, file_system_;
};

double seconds_at(std::uint64_t bytes, const RawDrive::Result& raw) {
  return static_cast<double>(bytes) / raw.bytes_per_second();
}
// The seconds that the drives alone need.
double bound(const Options& o, double read, double write) {
  return o.to.empty() ? read + write : std::max(read, write);
}
double save_bound(const Options& o, const Round& r) {
  return bound(o, seconds_at(r.save.read_bytes, r.from_read),
               seconds_at(r.save.written_bytes, r.to_write));
}
double load_bound(const Options& o, const Round& r) {
  return bound(o, seconds_at(r.load.read_bytes, r.to_read),
               seconds_at(r.load.written_bytes, r.from_write));
}

// The drive's reads and writes at once, as a share of one after the other.
double rewrite_of_bound(const Round& r) {
  return (r.from_read.seconds + r.from_write.seconds) / r.rewrite.seconds;
}

double sleep_bound(const Round& r) { return seconds_at(r.sleep.written_bytes, r.from_write); }
double wake_bound(const Round& r) { return seconds_at(r.wake.read_bytes, r.from_read); }

struct Figure {
  const char* key;
  const char* title;
  double (*of)(const Options&, const Round&);
};
constexpr Figure kFigures[] = {
    {"raw_read_gb_per_s", "read GB/s",
     [](const auto&, const auto& r) { return 1e-9 * r.from_read.bytes_per_second(); }},
    {"raw_new_file_gb_per_s", "write GB/s",
     [](const auto&, const auto& r) { return 1e-9 * r.to_write.bytes_per_second(); }},
    {"raw_rewrite_of_bound", "both/bound",
     [](const auto&, const auto& r) { return rewrite_of_bound(r); }},
    {"save_bound_s", "bound s", [](const auto& o, const auto& r) { return save_bound(o, r); }},
    {"save_s", "save s", [](const auto&, const auto& r) { return r.save.seconds; }},
    {"save_of_bound", "of bound",
     [](const auto& o, const auto& r) { return save_bound(o, r) / r.save.seconds; }},
    {"load_bound_s", "bound s", [](const auto& o, const auto& r) { return load_bound(o, r); }},
    {"load_s", "load s", [](const auto&, const auto& r) { return r.load.seconds; }},
    {"load_of_bound", "of bound",
     [](const auto& o, const auto& r) { return load_bound(o, r) / r.load.seconds; }},
    {"sleep_of_bound", "sleep/bound",
     [](const auto&, const auto& r) { return sleep_bound(r) / r.sleep.seconds; }},
    {"wake_s", "wake s", [](const auto&, const auto& r) { return r.wake.seconds; }},
    {"wake_of_bound", "of bound",
     [](const auto&, const auto& r) { return wake_bound(r) / r.wake.seconds; }},
    {"save_cpu_s", "save CPU", [](const auto&, const auto& r) { return r.save.cpu_seconds; }},
    {"load_cpu_s", "load CPU", [](const auto&, const auto& r) { return r.load.cpu_seconds; }},
    {"step_s", "step s", [](const auto&, const auto& r) { return r.step_seconds; }},
    {"step_beside_save_s", "beside s",
     [](const auto&, const auto& r) { return r.step_beside_seconds; }},
    {"step_beside_save_of_step", "of step",
     [](const auto&, const auto& r) { return r.step_beside_seconds / r.step_seconds; }},
};

MedianInterval spread(const Options& o, const std::vector<Round>& rounds, const Figure& figure) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(figure.of(o, round));
  return median_interval(std::move(values));
}

std::vector<Fact> config_facts(const Options& o) {
  return {{"parameters", fmt::format("{} (bf16, split master), all on NVMe", o.parameters)},
          {"engine's drive", o.nvme},
          {"checkpoint in", o.to.empty() ? o.nvme + " (the same drive)" : o.to},
          {"background saves", fmt::format("at {} MiB/s", o.save_mib_per_second)},
          {"rounds", std::to_string(o.rounds)}};
}

std::string row(const std::string& name, const std::function<std::string(const Figure&)>& cell) {
  std::string text = fmt::format("{:<7}", name);
  for (const Figure& figure : kFigures)
    text += fmt::format(" {:>{}}", cell(figure), std::string_view(figure.title).size());
  return text + "\n";
}

std::string result_text(const Options& o, Bench& bench, const std::vector<Round>& rounds,
                        std::uint64_t peak_bytes) {
  std::string text = fmt::format(
      "drive\n  {:<15} {}\n  {:<15} {}\n  {:<15} {} on NVMe, {} saved\n\n", "queue", bench.queue(),
      "file system", bench.file_system(), "bytes", bench.state_bytes(), bench.file_bytes());
  text += row("round", [](const Figure& f) { return std::string(f.title); });
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    text += row(std::to_string(r + 1),
                [&](const Figure& f) { return three_digits(f.of(o, rounds[r])); });
  }
  text += row("median", [&](const Figure& f) { return three_digits(spread(o, rounds, f).median); });
  text += row("least", [&](const Figure& f) { return three_digits(spread(o, rounds, f).least); });
  text += row("most", [&](const Figure& f) { return three_digits(spread(o, rounds, f).most); });
  return text + fmt::format("\npeak resident memory: {}; four engines by their plans: {}\n",
                            base::format_bytes(peak_bytes),
                            base::format_bytes(bench.planned_bytes()));
}

Json to_json(const Options& o, Bench& bench, const std::vector<Round>& rounds,
             std::uint64_t peak_bytes) {
  Json json = head_json("checkpoint_bench", config_facts(o), doubts());
  json["bytes"] = {{"on_nvme", bench.state_bytes()}, {"saved", bench.file_bytes()}};
  json["peak_resident_bytes"] = peak_bytes;
  json["planned_bytes"] = bench.planned_bytes();
  for (const Figure& figure : kFigures) {
    const MedianInterval values = spread(o, rounds, figure);
    json["summary"][figure.key] = {
        {"median", values.median}, {"min", values.least}, {"max", values.most}};
    for (std::size_t r = 0; r < rounds.size(); ++r)
      json["rounds"][r][figure.key] = figure.of(o, rounds[r]);
  }
  return json;
}

int run(const Options& options) {
  std::FILE* const out = out_beside(options.json);
  Bench bench(options);
  print_to(out, "{}", head_text(config_facts(options), doubts()));
  const auto rounds = alternating_rounds(
      options.rounds, [&](std::uint32_t done) { show_progress(done, options.rounds); },
      [&](bool backwards) { return bench.round(backwards); });
  const std::uint64_t peak_bytes = platform::peak_resident_bytes();
  print_to(out, "{}", result_text(options, bench, rounds, peak_bytes));
  command_line::write_report(options.json, dump(to_json(options, bench, rounds, peak_bytes)));
  return kDone;
}

void add_options(CLI::App& app, Options& o) {
  add_number(app, "--parameters", o.parameters, {base::kBlockElements, std::uint64_t{1} << 40},
             "bf16 parameters, in blocks of 12.6 million")
      ->default_str(std::to_string(o.parameters));
  add_number(app, "--rounds", o.rounds, {1, 1000}, "Rounds, after a save to warm up")
      ->default_str(std::to_string(o.rounds));
  add_number(app, "--save-rate", o.save_mib_per_second, {1, 1'000'000},
             "MiB/s of background saves, at most")
      ->default_str(std::to_string(o.save_mib_per_second));
  app.add_option("--nvme", o.nvme, "Folder on the engine's drive")->capture_default_str();
  app.add_option("--to", o.to, "Folder on another drive, for the checkpoint [that of --nvme]");
  app.add_option("--json", o.json, "File for the report; - is stdout");
}

int checkpoint_bench(int argc, const char* const* argv) {
  Options options;
  return run_bench_program({.name = "checkpoint_bench",
                            .description = kDescription,
                            .footer = kFooter,
                            .json = options.json,
                            .add_options = [&](CLI::App& app) { add_options(app, options); },
                            .check =
                                [&](const CLI::App&) {
                                  for (const std::string& folder : {options.nvme, options.folder()})
                                    swap::probe_path(folder, options.settings());
                                },
                            .run = [&] { return run(options); }},
                           argc, argv);
}
}  // namespace
}  // namespace headrace::tools

int main(int argc, char** argv) {
  return headrace::tools::run_program("checkpoint_bench", argc, argv,
                                      headrace::tools::checkpoint_bench);
}
