// SPDX-License-Identifier: Apache-2.0
#include "bench/options.hpp"

#include <sched.h>

#include <algorithm>

#include "base/units.hpp"
#include "bench/default_workloads.hpp"
#include "command_line/command_line.hpp"
#include "command_line/quantities.hpp"
#include "platform/proc_files.hpp"
#include "program/io_queue_names.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
using command_line::Fault;
using command_line::to_list;

constexpr const char* kDescription =
    "Measures what a drive can do for offloading: sequential and random reads and writes, and the "
    "update\nphase's pattern of reading a block and writing it back (rw), over block sizes and "
    "depths. Rounds are\ninterleaved; medians come with a 95 % interval. In a directory it reads "
    "only what\nthis run wrote, and compares all of it.\nPATH is a directory on the drive (a "
    "scratch file is made in it and removed), one per drive; or a block\ndevice or a file, which "
    "are only read.\n";
constexpr const char* kFooter =
    "\nSizes are powers of 1024 (4M, 1GiB), lists have commas: --bs 1M,4M --iodepth 4,16. Without "
    "--rw, --bs,\n--iodepth, --queue and --batch a default set is measured.\n`headrace bench "
    "optimizer` measures the update on the CPU, `headrace bench copy` copies between host and "
    "GPU.\n"
    "--require takes read, write, randread, randwrite, rw (GB/s), p50, p99, p99.9, max (ms, us, "
    "s), "
    "iops (k, M)\nand cpu (s/GB). Of throughput and iops the best workload is judged, of latencies "
    "and cpu the recommended\none (of reads, else of rw, else of writes).\n"
    "\nExit codes: 0 done, 1 the run failed or data differed, 2 refused before it started, 3 a "
    "named "
    "queue or fio\nis not available, 4 a --require was missed, 128 + n ended by signal n.\n";

// As given; empty: not.
struct Words {
  std::string patterns, blocks, depths, queues, batches, size, runtime, most_written, rounds, until,
      cpus, verify, compare;
  std::uint32_t jobs = 1;
  std::uint32_t numa_node = ~0u;
  bool quick = false, engine = false, unregistered = false;
};

void add_what(CLI::App& app, BenchOptions& o, Words& w) {
  const char* group = "What is measured";
  app.add_option("PATH", o.paths, "Directories, one per drive [the current one]")->type_name("");
  const auto list = [&](const char* name, std::string& to, const char* help) {
    app.add_option(name, to, help)->group(group)->type_name("LIST");
  };
  list("--rw", w.patterns, "read, write, randread, randwrite, rw [read,write,rw]");
  list("--bs", w.blocks, "Bytes of one request, 4k to 64M [1M]");
  list("--iodepth", w.depths, "Requests in flight per drive and job, 1 to 1024 [16]");
  list("--queue", w.queues,
       "auto, uring, aio, threads; as fio's --ioengine [HEADRACE_IO_QUEUE, else auto]");
  const auto refuse_engine = [](const std::string& word) {
    throw Fault{"--ioengine is an option of fio; here it is --queue",
                "Give --queue " + (word == "libaio"     ? "aio"
                                   : word == "io_uring" ? "uring"
                                                        : std::string("uring, aio or threads"))};
  };
  app.add_option_function<std::string>("--ioengine", refuse_engine, "")->group("");  // not listed
  list("--batch", w.batches, "Requests per system call [2]");
  app.add_flag("--unregistered", w.unregistered, "uring: also without registered buffers")
      ->group(group);
  command_line::add_number(app, "--jobs", w.jobs, {1, 64},
                           "Threads per drive, each with a part of the file")
      ->group(group)
      ->default_str("1");
  app.add_flag("--engine", w.engine, "Also the engine's own path: records through its conductor")
      ->group(group);
  app.add_option("--compare", w.compare, "Also run fio with the same work, in the same rounds")
      ->group(group)
      ->type_name("fio");
  list("--cpus", w.cpus, "CPUs that the threads run on: 0-3,8");
  command_line::add_number(app, "--numa-node", w.numa_node, {0, 1023},
                           "Run the threads on all CPUs of this node")
      ->group(group);
  command_line::add_number(app, "--with-update-load", o.load_threads, {1, 1024},
                           "Threads that update optimizer state in memory at the same time")
      ->group(group);
}

void add_how_much(CLI::App& app, BenchOptions& o, Words& w) {
  const char* group = "How much";
  const auto text = [&](const char* name, const char* type, std::string& to, const char* help) {
    app.add_option(name, to, help)->group(group)->type_name(type);
  };
  text("--size", "SIZE", w.size, "Size of the file per drive [1G; --quick 512M; --sustained 16G]");
  text("--runtime", "TIME", w.runtime,
       "At most this long in all [60s; --quick 10s; --sustained 5m]");
  text("--max-write", "SIZE", w.most_written,
       "Write at most this much per drive [8G; --quick 4G; --sustained 64G]");
  text("--rounds", "N", w.rounds,
       "Rounds, after one to warm up; 0: as many as the time allows [6; --until 40]");
  text("--until", "SHARE", w.until, "End early once each interval is within this, e.g. 3%");
  app.add_flag("--quick", w.quick, "A first look in 10 s")->group(group);
  app.add_flag("--sustained", o.sustained,
               "One long run per pattern, second by second, beyond the drive's cache")
      ->group(group);
  text("--verify", "HOW", w.verify,
       "stamps: a few pages per block, every byte at the end; whole: every byte of every read "
       "[stamps]");
}

void add_results(CLI::App& app, BenchOptions& o) {
  const char* group = "Results";
  app.add_option("--json", o.json, "File for the report; - is stdout")
      ->group(group)
      ->type_name("FILE");
  command_line::add_replaced(app, "--report", page_of_json());
  app.add_option("--require", o.require, "Exit with 4 unless met: read=6GB/s,write=4GB/s,p99=20ms")
      ->group(group)
      ->type_name("LIST");
  app.add_flag("--as-fio", o.as_fio, "Print fio's commands for the same work; measure nothing")
      ->group(group);
}

template <class T, class To>
std::vector<T> list_of(const char* name, const std::string& words, std::vector<T> otherwise,
                       const To& to) {
  if (words.empty()) return otherwise;
  std::vector<T> values;
  for (const std::string& word : to_list(name, words)) {
    const T value = to(word);
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  return values;
}

Pattern to_pattern(const std::string& word) {
  if (const auto pattern = pattern_of(word)) return *pattern;
  throw Fault{"--rw '" + word + "' is not known", "Give read, write, randread, randwrite or rw"};
}

Axes axes_of(const Words& w) {
  const auto number = [](const char* name, std::uint64_t most) {
    return [name, most](const std::string& word) {
      return static_cast<std::uint32_t>(command_line::to_whole(name, word, {1, most}));
    };
  };
  Axes axes;
  axes.patterns = list_of<Pattern>("--rw", w.patterns, {}, to_pattern);
  axes.blocks = list_of<std::uint64_t>("--bs", w.blocks, {}, [](const std::string& word) {
    return command_line::to_bytes("--bs", word, {4096, 64 * base::kMiB, 4096});
  });
  axes.depths = list_of<std::uint32_t>("--iodepth", w.depths, {}, number("--iodepth", 1024));
  axes.queues = list_of<IoQueueKind>("--queue", w.queues, {}, [](const std::string& word) {
    return queue_in_option("--queue", word);
  });
  axes.batches = list_of<std::uint32_t>("--batch", w.batches, {}, number("--batch", 256));
  axes.queue = queue_of_environment();
  axes.jobs = w.jobs;
  axes.also_unregistered = w.unregistered;
  axes.also_engine = w.engine;
  return axes;
}

// "0-3,8".
std::vector<int> cpus_of(const char* name, const std::string& words) {
  std::vector<int> cpus;
  for (const std::string& word : to_list(name, words)) {
    const std::size_t dash = word.find('-', 1);
    const auto cpu = [&](const std::string& digits) {
      return static_cast<int>(command_line::to_whole(name, digits, {0, CPU_SETSIZE - 1}));
    };
    const int first = cpu(word.substr(0, dash));
    const int last = dash == std::string::npos ? first : cpu(word.substr(dash + 1));
    if (last < first)
      throw Fault{
          std::string(name) + " " + word + " ends before it begins",
          "Give the lower number first: " + std::to_string(last) + "-" + std::to_string(first)};
    for (int i = first; i <= last; ++i) cpus.push_back(i);
  }
  cpu_set_t allowed;
  if (cpus.empty() || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cpus;
  for (const int cpu : cpus) {
    if (!CPU_ISSET(static_cast<unsigned>(cpu), &allowed))
      throw Fault{std::string(name) + ": this process may not run on CPU " + std::to_string(cpu),
                  "See `headrace doctor` for those it may"};
  }
  return cpus;
}

std::vector<int> cpus_of_node(std::uint32_t node) {
  const std::string path = "/sys/devices/system/node/node" + std::to_string(node) + "/cpulist";
  std::string list = platform::read_text(path).value_or("");
  list.erase(std::ranges::remove_if(list, [](unsigned char c) { return c <= ' '; }).begin(),
             list.end());
  if (list.empty())
    throw Fault{"--numa-node " + std::to_string(node) + ": there is no " + path,
                "Name a node that has CPUs, or leave it out"};
  return cpus_of("--numa-node", list);
}

void take_amounts(BenchOptions& o, const Words& w) {
  const auto otherwise = [&](auto usual, auto quick, auto sustained) {
    return o.sustained ? sustained : w.quick ? quick : usual;
  };
  const auto bytes = [](const char* name, const std::string& word, std::uint64_t least) {
    return command_line::to_bytes(name, word, {least, std::uint64_t{1} << 50});
  };
  o.file_bytes_given = !w.size.empty();
  o.file_bytes = w.size.empty()
                     ? otherwise(base::kGiB, base::kGiB / 2, 16 * base::kGiB)
                     : base::align_up(bytes("--size", w.size, 64 * base::kMiB), base::kHugePage);
  o.most_written_bytes = w.most_written.empty()
                             ? otherwise(8 * base::kGiB, 4 * base::kGiB, 64 * base::kGiB)
                             : bytes("--max-write", w.most_written, 64 * base::kMiB);
  o.most_seconds = w.runtime.empty()
                       ? otherwise(60.0, 10.0, 300.0)
                       : command_line::to_seconds("--runtime", w.runtime, {1, 86400.0 * 30});
  if (!w.rounds.empty())
    o.rounds =
        static_cast<std::uint32_t>(command_line::to_whole("--rounds", w.rounds, {0, 100000}));
  if (o.rounds == 0) o.rounds = 1'000'000;
  if (w.rounds.empty() && !w.until.empty()) o.rounds = 40;
  if (!w.until.empty()) o.until = command_line::to_share("--until", w.until, {0.001, 1});
}

void finish(BenchOptions& o, const Words& w) {
  if (o.paths.empty()) o.paths = {"."};
  if (w.quick && o.sustained)
    throw Fault{"--quick and --sustained do not go together: one is short, the other long",
                "Give one of them; --runtime and --max-write limit either"};
  take_amounts(o, w);
  if (!w.verify.empty())
    o.verify = command_line::to_choice<Verify>(
        "--verify", w.verify, {{"stamps", Verify::kStamps}, {"whole", Verify::kWhole}});
  if (!w.compare.empty())
    o.compare_fio = command_line::to_choice<bool>("--compare", w.compare, {{"fio", true}});
  if (!w.cpus.empty() && w.numa_node != ~0u)
    throw Fault{"--cpus and --numa-node both say where threads run", "Give one of them"};
  if (!w.cpus.empty()) o.cpus = cpus_of("--cpus", w.cpus);
  if (w.numa_node != ~0u) o.cpus = cpus_of_node(w.numa_node);
  const Effort effort = o.sustained ? Effort::kSustained
                        : w.quick   ? Effort::kQuick
                                    : Effort::kUsual;
  o.workloads = workloads_of(axes_of(w), effort);
  if (o.sustained && o.compare_fio)
    throw Fault{"--sustained and --compare fio do not go together",
                "Compare in short rounds, then measure the long stretch alone"};
}
}  // namespace

int refuse_compare(int argc, const char* const* argv) {
  const Fault fault{
      "reports are compared by a program of their own",
      "Run `python3 scripts/report compare A.json B.json` in Headrace's folder; it takes "
      "--fail-below too"};
  return Failing("headrace bench compare", command_line::value_of("--json", argc, argv))
      .fail(kRefused, "kUsage", command_line::text_of(fault, "nothing was compared"));
}

int run_with_bench_options(int argc, const char* const* argv,
                           const std::function<int(const BenchOptions&)>& run) {
  BenchOptions options;
  Words words;
  CLI::App app(kDescription, kBenchName);
  app.footer(kFooter);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_what(app, options, words);
  app.get_option("PATH")->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_how_much(app, options, words);
  add_results(app, options);
  return run_subcommand({.program = kBenchName,
                         .nothing_done = "nothing was measured",
                         .app = app,
                         .json = options.json,
                         .check = [&] { finish(options, words); },
                         .run = [&] { return run(options); },
                         .lost = "what was measured so far is lost, its files are gone",
                         .less = {"fewer --jobs, a smaller --bs or --iodepth", "fewer --jobs"}},
                        argc, argv);
}
}  // namespace headrace::tools
