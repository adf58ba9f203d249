// SPDX-License-Identifier: Apache-2.0
// `headrace doctor`: its rows on made-up machines, requirements, and the program where little is
// allowed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "command_line/words.hpp"
#include "doctor/report.hpp"
#include "doctor/requirements.hpp"
#include "doctor/rows.hpp"
#include "doctor/shared_library.hpp"
#include "headrace/cuda.hpp"
#include "headrace/engine.hpp"
#include "platform/fake_root.hpp"
#include "platform/proc_files.hpp"
#include "support/all_on_nvme.hpp"
#include "support/scripted_trainer.hpp"
#include "support/temporary_directory.hpp"
#include "swap/dead_runs.hpp"
#include "swap/io_queue.hpp"
#include "swap/limits.hpp"

namespace headrace::tools::doctor_test {
namespace {
namespace fs = std::filesystem;
using platform::BlockDeviceKind;
using platform::test::FakeRoot;

const Row& row_of(const std::vector<Row>& rows, const std::string& name) {
  const auto found = std::ranges::find(rows, name, &Row::name);
  if (found == rows.end()) throw std::runtime_error("no row " + name);
  return *found;
}

// ---- rows on machines that are not here ----

TEST(DoctorRows, AreUnknownAndNeverGuessedWhereNothingCanBeRead) {
  const FakeRoot nothing;
  const Section memory = memory_section(nothing.path());
  for (const char* name : {"memory", "huge pages"})
    EXPECT_EQ(row_of(memory.rows, name).mark, Mark::kUnknown) << name;
  const Section processor = processor_section(nothing.path());
  for (const char* name : {"processor", "features"})
    EXPECT_EQ(row_of(processor.rows, name).mark, Mark::kUnknown) << name;
  EXPECT_EQ(row_of(gpu_section(nothing.path()).rows, "GPUs").mark, Mark::kUnknown);
  EXPECT_EQ(row_of(drive_rows({}, nothing.path()), "block device").mark, Mark::kUnknown);
}

TEST(DoctorRows, WhetherTheCpuHasAmxIsFoundOrNotKnown) {
  const FakeRoot root;
  const auto missed = [&] {
    return missed_requirements(parse_requirements("amx_bf16"), {processor_section(root.path())});
  };
  ASSERT_EQ(missed().size(), 1u) << "not known";
  root.write("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx2\n");
  ASSERT_EQ(missed().size(), 1u);
  EXPECT_EQ(missed()[0].fix, "a CPU with AMX, or a virtual machine that shows it");
  root.write("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx2 amx_bf16\n");
  EXPECT_TRUE(missed().empty());
}

TEST(DoctorRows, NameTheConsequenceAndTheCommandBesideEachNoteOfMemory) {
  const FakeRoot root;
  root.write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 524288 kB\n");
  root.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  const Section memory = memory_section(root.path());
  for (const char* name : {"usable memory", "huge pages"}) {
    const Row& row = row_of(memory.rows, name);
    EXPECT_EQ(row.mark, Mark::kNote) << name;
    EXPECT_FALSE(row.consequence.empty()) << name;
    EXPECT_FALSE(row.fix.empty()) << name;
  }
  EXPECT_NE(row_of(memory.rows, "huge pages").fix.find("transparent_hugepage/enabled"),
            std::string::npos);
}

DriveFacts nvme_facts() {
  DriveFacts facts;
  facts.device = "nvme0n1p1";
  facts.stack = "partition";
  facts.chain.resize(2);
  facts.chain[0].name = "nvme0n1p1";
  facts.chain[0].number = "259:1";
  facts.chain[0].kind = BlockDeviceKind::kPartition;
  facts.chain[1].name = "nvme0n1";
  facts.chain[1].number = "259:0";
  facts.disks.resize(1);
  facts.disks[0].name = "nvme0n1";
  facts.disks[0].model = "Fast 2TB";
  facts.disks[0].transport = "pcie";
  facts.disks[0].rotational = false;
  facts.disks[0].scheduler = "none";
  return facts;
}

TEST(DoctorRows, TellALinkThatIsSlowerThanTheDriveAndWhoCouldMendIt) {
  DriveFacts facts = nvme_facts();
  facts.disks[0].link = PcieLink{"0000:01:00.0", 8, 16, 8, 4, 4, 16};
  const Row slow_slot = row_of(drive_rows(facts), "its PCIe link");
  EXPECT_EQ(slow_slot.mark, Mark::kNote);
  EXPECT_EQ(slow_slot.value, "8 GT/s x4, at most 3.9 GB/s");
  EXPECT_EQ(slow_slot.consequence, "the drive could do 16 GT/s x4 (7.9 GB/s)");
  EXPECT_NE(slow_slot.fix.find("the slot does no more"), std::string::npos);
  facts.disks[0].link->slot_max_speed_gt = 16;
  EXPECT_NE(row_of(drive_rows(facts), "its PCIe link").fix.find("reseat"), std::string::npos);
  facts.disks[0].link->speed_gt = 16;
  EXPECT_EQ(row_of(drive_rows(facts), "its PCIe link").mark, Mark::kOk);
  facts.disks[0].link->width = 0;
  EXPECT_EQ(row_of(drive_rows(facts), "its PCIe link").mark, Mark::kUnknown);
}

TEST(DoctorRows, AFlushThatIsTooShortIsANoteUnlessTheDriveSaysThatItHasNoCache) {
  DriveFacts facts = nvme_facts();
  Row row = flush_row({9e-3, 1e-3, 2e-3}, facts);
  EXPECT_EQ(row.mark, Mark::kOk);
  EXPECT_EQ(row.value, "2 ms");
  EXPECT_EQ(row.values["seconds"], 2e-3);
  EXPECT_EQ(row.values["samples"], 3);
  EXPECT_EQ(flush_row({80e-6}, facts).mark, Mark::kOk);
  facts.disks[0].write_cache = "write back";
  row = flush_row({5e-6, 4e-6, 1}, facts);
  EXPECT_EQ(row.mark, Mark::kNote);
  EXPECT_EQ(row.value, "5 us");
  EXPECT_NE(row.consequence.find("loses committed steps"), std::string::npos);
  EXPECT_FALSE(row.fix.empty());
  facts.disks[0].write_cache = "write through";
  row = flush_row({5e-6}, facts);
  EXPECT_EQ(row.mark, Mark::kOk);
  EXPECT_NE(row.detail.find("write through"), std::string::npos) << row.detail;
  facts.disks.push_back(facts.disks[0]);
  facts.disks[1].write_cache = "";
  EXPECT_EQ(flush_row({5e-6}, facts).mark, Mark::kNote);
  facts.disks.clear();  // no block device
  EXPECT_EQ(flush_row({5e-6}, facts).mark, Mark::kOk);
}

TEST(DoctorRows, NoFlushIsTimedWithoutAFile) { EXPECT_TRUE(flush_times({}).empty()); }

// ---- stores ----

class DoctorStore : public ::testing::Test {
 protected:
  Settings settings() const {
    Settings s = testing::all_on_nvme(drive_.string());
    s.durable_every = 1;
    s.store = "run-1";
    return s;
  }
  Section look(const Settings& s, std::uint64_t parameters = 0) const {
    return store_section(s, {drive_.string()}, parameters);
  }
  void train(Engine& engine) const {
    testing::ScriptedTrainer trainer(engine, {3000});
    trainer.step(script_of(testing::Departure::kNone, 1, false));
  }
  const testing::TemporaryDirectory drive_;
};

TEST_F(DoctorStore, SaysWhatIsThereOfItAndWhetherARunWouldGoOn) {
  Settings s = settings();
  Section section = look(s);
  EXPECT_EQ(section.title, "Store run-1");
  EXPECT_EQ(row_of(section.rows, "store").value, "not there");
  EXPECT_EQ(row_of(section.rows, "store").mark, Mark::kOk);
  s.resume = Resume::kRequire;
  EXPECT_EQ(row_of(look(s).rows, "store").mark, Mark::kNote);
  {
    Engine engine(settings());
    train(engine);
    section = look(settings());
    EXPECT_EQ(row_of(section.rows, "store").value, "in use");
    EXPECT_EQ(row_of(section.rows, "store").mark, Mark::kNote);
    EXPECT_NE(row_of(section.rows, "store").detail.find("is in use"), std::string::npos);
    engine.close();
  }
  section = look(s);
  const Row row = row_of(section.rows, "store");
  EXPECT_TRUE(row.value.starts_with("whole, step 1, ")) << row.value;
  EXPECT_EQ(row.mark, Mark::kOk);
  EXPECT_EQ(row.values["step"], 1);
  EXPECT_EQ(section.rows.size(), 1u) << "it has its room";
  s.resume = Resume::kNever;
  EXPECT_EQ(row_of(look(s).rows, "store").mark, Mark::kNote);
  const std::string file =
      drive_.string() + "/" + swap::user_directory_name() + "/store-run-1/rank0.0.store";
  fs::resize_file(file, 8192);
  EXPECT_EQ(row_of(look(settings()).rows, "store").mark, Mark::kGap);
  fs::remove(file);
  EXPECT_EQ(row_of(look(settings()).rows, "store").value, "not there");
}

TEST_F(DoctorStore, SaysThatARunBeginsAStoreAnewThatIsHalfMade) {
  {
    Engine engine(settings());
    const testing::ScriptedTrainer trainer(engine, {3000});  // no step
  }
  const fs::path folder = drive_.path() / swap::user_directory_name() / "store-run-1";
  fs::rename(folder / "rank0.0.store", folder / ".new-rank0.0.store");
  Settings s = settings();
  const Section section = look(s);
  EXPECT_EQ(row_of(section.rows, "store").value, "half made");
  EXPECT_EQ(row_of(section.rows, "store").mark, Mark::kOk);
  EXPECT_EQ(section.rows.size(), 2u) << "it needs room";
  s.resume = Resume::kRequire;
  EXPECT_EQ(row_of(look(s).rows, "store").mark, Mark::kNote);
}

TEST_F(DoctorStore, NeedsRoomForTwiceTheState) {
  Settings s = settings();
  Row row = row_of(look(s).rows, "room for it");
  EXPECT_EQ(row.mark, Mark::kOk);
  EXPECT_EQ(row.values["bytes_per_parameter"], 24);
  const std::uint64_t free = row.values["free_bytes"];
  EXPECT_EQ(row_of(look(s, free / 48).rows, "room for it").mark, Mark::kOk);
  row = row_of(look(s, free / 12).rows, "room for it");
  EXPECT_EQ(row.mark, Mark::kGap);
  EXPECT_EQ(row.values["needed_bytes"], free / 12 * 24);
  s.moments = MomentCodec::kBf16;
  EXPECT_EQ(row_of(look(s).rows, "room for it").values["bytes_per_parameter"], 16);
}

TEST(DoctorRows, SayWhatEachKindOfStackCosts) {
  const auto stack_with = [](BlockDeviceKind kind, const char* detail) {
    DriveFacts facts = nvme_facts();
    facts.chain[0].kind = kind;
    facts.chain[0].detail = detail;
    return row_of(drive_rows(facts), "block device");
  };
  EXPECT_EQ(stack_with(BlockDeviceKind::kPartition, "").mark, Mark::kOk);
  EXPECT_EQ(stack_with(BlockDeviceKind::kLogicalVolume, "vg-lv").mark, Mark::kOk);
  EXPECT_EQ(stack_with(BlockDeviceKind::kRaid, "raid0").mark, Mark::kOk);
  EXPECT_EQ(stack_with(BlockDeviceKind::kRaid, "raid5").mark, Mark::kNote);
  EXPECT_EQ(stack_with(BlockDeviceKind::kLoop, "/a/file").mark, Mark::kNote);
  EXPECT_EQ(stack_with(BlockDeviceKind::kMemory, "").mark, Mark::kGap);
  const Row crypt = stack_with(BlockDeviceKind::kCrypt, "luks-home");
  EXPECT_EQ(crypt.mark, Mark::kNote);
  EXPECT_NE(crypt.fix.find("--perf-no_write_workqueue luks-home"), std::string::npos) << crypt.fix;
}

TEST(DoctorRows, TellWhatMakesADriveSlow) {
  DriveFacts facts = nvme_facts();
  Disk& disk = facts.disks[0];
  EXPECT_EQ(row_of(drive_rows(facts), "its queue").mark, Mark::kOk);
  EXPECT_EQ(row_of(drive_rows(facts), "drive").mark, Mark::kOk);
  disk.scheduler = "bfq";
  disk.rotational = true;
  EXPECT_EQ(row_of(drive_rows(facts), "its queue").mark, Mark::kOk) << "bfq suits a spinning disk";
  EXPECT_EQ(row_of(drive_rows(facts), "drive").mark, Mark::kNote);
  disk.transport = "virtio";
  EXPECT_EQ(row_of(drive_rows(facts), "drive").mark, Mark::kOk) << "its host knows, not its guest";
  disk.rotational = false;
  EXPECT_NE(row_of(drive_rows(facts), "its queue").fix.find("/sys/block/nvme0n1/queue/scheduler"),
            std::string::npos);
}

TEST(DoctorRows, TellALimitOnThisDriveAndNotThatOnAnother) {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/job\n");
  root.write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.write("/sys/fs/cgroup/job/io.max", "8:0 rbps=1 wbps=1 riops=1 wiops=1\n");
  EXPECT_EQ(row_of(drive_rows(nvme_facts(), root.path()), "cgroup limit").mark, Mark::kOk);
  root.write("/sys/fs/cgroup/job/io.max", "259:0 rbps=max wbps=1048576 riops=max wiops=max\n");
  const Row limited = row_of(drive_rows(nvme_facts(), root.path()), "cgroup limit");
  EXPECT_EQ(limited.mark, Mark::kNote);
  EXPECT_EQ(limited.value, "1 MiB/s written");
  EXPECT_EQ(limited.detail, "cgroup io.max of /sys/fs/cgroup/job");
}

// ---- GPUs ----

CudaFacts facts_with(bool served) {
  CudaFacts facts;
  facts.built = true;
  facts.runtime_version = 13000;
  facts.driver_version = 13010;
  facts.architectures = "80 90";
  CudaGpu gpu;
  gpu.name = "NVIDIA H200";
  gpu.pci_bus_id = "0000:1b:00.0";
  gpu.compute_major = served ? 9 : 7;
  gpu.memory_bytes = 150'000'000'000;
  gpu.copy_engines = 3;
  gpu.served = served;
  facts.gpus = {gpu};
  return facts;
}
GpuFacts one_plugged_in() {
  GpuFacts facts;
  facts.gpus = {{.address = "0000:1b:00.0", .model = "NVIDIA", .driver = "", .link = {}}};
  return facts;
}

TEST(DoctorGpuRows, SayWhatCudaShows) {
  const std::vector<Row> rows = cuda_rows(facts_with(true), one_plugged_in());
  EXPECT_EQ(row_of(rows, "CUDA build").value, "13.0, kernels for 80 90");
  EXPECT_EQ(row_of(rows, "usable GPUs").value, "1, driver for CUDA 13.1");
  EXPECT_EQ(row_of(rows, "cuda:0").value,
            "NVIDIA H200 at 0000:1b:00.0, 139.70 GiB, compute 9.0, 3 copy engines");
  for (const Row& row : rows) EXPECT_EQ(row.mark, Mark::kOk) << row.name;
  const Json& gpu = row_of(rows, "usable GPUs").values["gpus"][0];
  EXPECT_EQ(gpu["memory_bytes"], 150'000'000'000);
  EXPECT_EQ(gpu["compute_capability"], "9.0");
  EXPECT_TRUE(gpu["numa_node"].is_null());
}

TEST(DoctorGpuRows, NameWhatMendsAGpuThatTheBuildHasNoKernelsFor) {
  const std::vector<Row> rows = cuda_rows(facts_with(false), one_plugged_in());
  for (const char* name : {"usable GPUs", "cuda:0"}) {
    const Row& row = row_of(rows, name);
    EXPECT_EQ(row.mark, Mark::kGap) << name;
    EXPECT_NE(row.fix.find("HEADRACE_CUDA_ARCHITECTURES=native"), std::string::npos) << row.fix;
    EXPECT_FALSE(row.consequence.empty()) << name;
  }
}

TEST(DoctorGpuRows, HaveAGapWhereAGpuIsPluggedInAndNoneWhereThereIsNone) {
  CudaFacts facts;
  facts.built = true;
  facts.missing = "there is no driver: the device is the CPU. Install it; or give access.";
  const Row gap = row_of(cuda_rows(facts, one_plugged_in()), "usable GPUs");
  EXPECT_EQ(gap.mark, Mark::kGap);
  EXPECT_EQ(gap.detail, "there is no driver");
  EXPECT_EQ(gap.consequence, "the device is the CPU");
  EXPECT_EQ(gap.fix, "Install it; or give access");
  const Row none = row_of(cuda_rows(facts, {}), "usable GPUs");
  EXPECT_EQ(none.mark, Mark::kOk);
  EXPECT_EQ(none.detail, facts.missing);
  facts.missing = "NVIDIA's driver serves CUDA 12.2, and this build needs 13.0: install a newer";
  facts.driver_version = 12020;
  const Row old = row_of(cuda_rows(facts, {}), "usable GPUs");
  EXPECT_EQ(old.mark, Mark::kGap) << "a driver is there for a GPU";
  EXPECT_EQ(old.fix, "install a newer");
}

// Whatever this build and this machine have.
TEST(DoctorGpuRows, TakeWhatIsMissingHereApart) {
  const CudaFacts facts = cuda_facts();
  if (facts.missing.empty()) GTEST_SKIP() << "there is a GPU";
  const Row row = row_of(cuda_rows(facts, one_plugged_in()), "usable GPUs");
  EXPECT_EQ(row.mark, Mark::kGap);
  for (const std::string& part : {row.detail, row.consequence, row.fix}) EXPECT_FALSE(part.empty());
  EXPECT_EQ(row.fix.find("the device is the CPU"), std::string::npos) << row.fix;
  EXPECT_EQ(row_of(cuda_rows(facts, {}), "CUDA build").values["built"], facts.built);
}

TEST(DoctorGpuRows, CountForRequireOnlyWhatAnEngineCanUse) {
  const auto missed = [](const CudaFacts& facts, const char* required) {
    return missed_requirements(parse_requirements(required),
                               {{"GPUs", "", cuda_rows(facts, one_plugged_in())}});
  };
  EXPECT_TRUE(missed(facts_with(true), "gpu").empty());
  EXPECT_EQ(missed(facts_with(true), "gpu=2").size(), 1u);
  const auto unserved = missed(facts_with(false), "gpu");
  ASSERT_EQ(unserved.size(), 1u);
  EXPECT_EQ(unserved[0].found, "none");
  EXPECT_NE(unserved[0].fix.find("native"), std::string::npos) << unserved[0].fix;
}

TEST(DoctorRows, TakeAnErrorApart) {
  Row row;
  tell_error(row, "no room: ENOSPC; nothing can be swapped; free some");
  EXPECT_EQ(row.detail, "no room: ENOSPC");
  EXPECT_EQ(row.consequence, "nothing can be swapped");
  EXPECT_EQ(row.fix, "free some");
  tell_error(row, "a: EROFS; nothing; mount it; if not, look at dmesg");
  EXPECT_EQ(row.consequence, "nothing");
  EXPECT_EQ(row.fix, "mount it; if not, look at dmesg");
  tell_error(row, "alone");
  EXPECT_EQ(row.detail, "alone");
}

TEST(SharedLibrary, IsTriedWithoutHarmWhereItIsMissingOrHasNoSuchFunction) {
  const LibraryTrial missing = try_library("libheadrace-nothing.so.9", "f");
  EXPECT_FALSE(missing.loads);
  EXPECT_NE(missing.error.find("libheadrace-nothing.so.9"), std::string::npos) << missing.error;
  const LibraryTrial present = try_library("libc.so.6", "no_such_function");
  EXPECT_TRUE(present.loads);
  EXPECT_EQ(present.version, 0);
  // A function that ends its process ends the child alone.
  const LibraryTrial ends = try_library("libc.so.6", "abort");
  EXPECT_FALSE(ends.loads);
  EXPECT_TRUE(ends.harmful);
  EXPECT_FALSE(missing.harmful);
  EXPECT_NE(ends.error.find("ended or stalled"), std::string::npos) << ends.error;
}

// ---- requirements ----

std::vector<Section> sections_with(const char* name, std::optional<std::uint64_t> amount) {
  Row row{.name = "row", .value = "what is there", .fix = ""};
  row.findings = {{name, amount}};
  return {{"Title", "/some/path", {row}}};
}

TEST(Requirements, AreMissedWhereThereIsLessOrItIsNotKnown) {
  const auto required = parse_requirements("memlock=8GiB, o_direct");
  ASSERT_EQ(required.size(), 2u);
  EXPECT_EQ(required[0].amount, 8ull << 30);
  EXPECT_TRUE(missed_requirements(required, sections_with("memlock", 8ull << 30)).empty());
  EXPECT_TRUE(missed_requirements(required, sections_with("memlock", kNoLimit)).empty());
  const auto less = missed_requirements(required, sections_with("memlock", (8ull << 30) - 1));
  ASSERT_EQ(less.size(), 1u);
  EXPECT_EQ(less[0].required, "memlock=8GiB");
  EXPECT_EQ(less[0].found, "what is there (at /some/path)");
  EXPECT_NE(less[0].fix.find("ulimit -l"), std::string::npos);
  EXPECT_EQ(missed_requirements(required, sections_with("o_direct", std::nullopt)).size(), 1u);
  EXPECT_EQ(missed_requirements(required, sections_with("o_direct", 0)).size(), 1u);
}

TEST(Requirements, TakeSizesCountsAndNothing) {
  EXPECT_EQ(parse_requirements("free=1.5GiB")[0].amount, 3ull << 29);
  EXPECT_EQ(parse_requirements("free=1g")[0].amount, 1u << 30) << "as bench has them";
  EXPECT_EQ(parse_requirements("free=2GB")[0].amount, 2'000'000'000u);
  EXPECT_EQ(parse_requirements("cpus=8")[0].amount, 8u);
  EXPECT_EQ(parse_requirements("gpu")[0].amount, 1u);
  EXPECT_TRUE(parse_requirements("").empty());
}

TEST(Requirements, AreRefusedByNameWithTheNearestKnownOne) {
  const auto fault_of = [](const std::string& list) {
    try {
      parse_requirements(list);
    } catch (const command_line::Fault& fault) {
      return fault.cause + ". " + fault.fix;
    }
    return std::string("none");
  };
  EXPECT_NE(fault_of("io_urng").find("Did you mean io_uring?"), std::string::npos);
  EXPECT_NE(fault_of("amx").find("Did you mean amx_bf16?"), std::string::npos);
  EXPECT_NE(fault_of("avx5").find("Did you mean avx512?"), std::string::npos);
  EXPECT_NE(fault_of("zzzzzzzz").find("Known: io_uring, libaio"), std::string::npos);
  for (const char* wrong : {"memlock", "memlock=", "memlock=8", "memlock=8Gi", "free=-1GiB",
                            "free=9999999999TB", "cpus", "cpus=x", "avx2=1", ",", "free=nanGiB"})
    EXPECT_NE(fault_of(wrong), "none") << wrong;
}

// ---- the report ----

TEST(DoctorReport, HasNoColourAndNoControlCharacterWhereNoneIsAskedFor) {
  Row row{.name = "drive", .value = "evil\033[31m\nmodel", .mark = Mark::kGap};
  row.consequence = "c";
  row.fix = "f";
  const std::string plain = sections_text({{"Title", "", {row}}});
  EXPECT_NE(plain.find("GAP  drive"), std::string::npos) << plain;
  EXPECT_NE(plain.find("evil?[31m?model"), std::string::npos) << plain;
  EXPECT_EQ(plain.find('\033'), std::string::npos);
  EXPECT_NE(plain.find("0 ok, 0 notes, 1 gap, 0 unknown"), std::string::npos);
  for (const char byte : plain) EXPECT_GE(byte, 0) << plain;
  const std::string rich = sections_text({{"Title", "", {row}}}, Colour::kWanted);
  EXPECT_NE(rich.find("\033[31mGAP \033[0m drive"), std::string::npos) << rich;
}

TEST(DoctorReport, BreaksLongLinesAtBlanks) {
  Row row{.name = "row", .value = "v"};
  for (int i = 0; i < 60; ++i) row.detail += "word ";
  const std::string text = sections_text({{"Title", "", {row}}});
  for (const auto line : platform::split(text, '\n')) EXPECT_LE(line.size(), 100u) << line;
}

// ---- the program ----

struct Ran {
  int exit_code = -1;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

std::string read_all(int fd) {
  std::string text;
  char piece[4096];
  for (ssize_t got = 0; (got = ::read(fd, piece, sizeof piece)) > 0;)
    text.append(piece, static_cast<std::size_t>(got));
  return text;
}

// Runs the program in a child that `confine` was called in; 99: it could not be confined.
Ran run(std::vector<std::string> words, const std::function<bool()>& confine = {}) {
  const testing::TemporaryDirectory logs;
  // Opened before, since another user may not reach it by its path.
  const int program = ::open(HEADRACE_PROGRAM, O_RDONLY | O_CLOEXEC);
  const int err = ::open((logs.string() + "/err").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  words.insert(words.begin(), {"headrace", "doctor"});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    if (confine && !confine()) ::_exit(99);
    ::fexecve(program, arguments.data(), environ);
    ::_exit(98);
  }
  ::close(ends[1]);
  Ran ran;
  ran.out = read_all(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ::lseek(err, 0, SEEK_SET);
  ran.err = read_all(err);
  for (const int fd : {ends[0], err, program}) ::close(fd);
  return ran;
}

bool become_nobody() {
  return ::setresgid(swap::test::kNobody, swap::test::kNobody, swap::test::kNobody) == 0 &&
         ::setresuid(swap::test::kNobody, swap::test::kNobody, swap::test::kNobody) == 0;
}

nlohmann::json row_in(const nlohmann::json& report, const std::string& name) {
  for (const auto& section : report["sections"]) {
    for (const auto& row : section["rows"])
      if (row["name"] == name) return row;
  }
  return {};
}

class DoctorProgram : public ::testing::Test {
 protected:
  std::size_t files_left() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }
  const testing::TemporaryDirectory folder_;
};

TEST_F(DoctorProgram, EndsWithZeroAndLeavesNothing) {
  const Ran text = run({folder_.string()});
  EXPECT_EQ(text.exit_code, 0) << text.out << text.err;
  EXPECT_EQ(text.err, "");
  EXPECT_NE(text.out.find("O_DIRECT"), std::string::npos);
  EXPECT_EQ(text.out.find('\033'), std::string::npos) << "a pipe is no terminal";
  const Ran json = run({folder_.string(), "--json", "-"});
  EXPECT_EQ(json.exit_code, 0);
  const auto report = json.json();
  EXPECT_EQ(report["schema_version"], 1);
  EXPECT_EQ(report["exit_code"], 0);
  EXPECT_EQ(row_in(report, "directory")["mark"], "ok");
  std::size_t rows = 0, counted = 0;
  for (const auto& section : report["sections"]) rows += section["rows"].size();
  for (const auto& [mark, count] : report["counts"].items()) counted += count.get<std::size_t>();
  EXPECT_EQ(rows, counted);
  for (const auto& section : report["sections"]) {
    for (const auto& row : section["rows"]) {
      if (row["mark"] != "gap" && row["mark"] != "note") continue;
      EXPECT_NE(row["consequence"], "") << row;
    }
  }
  EXPECT_EQ(files_left(), 0u);
}

TEST_F(DoctorProgram, TimesAFlushWhereAFileCanBeMade) {
  const auto report = run({folder_.string(), "--json", "-"}).json();
  const auto row = row_in(report, "flush");
  if (row.is_null()) GTEST_SKIP() << "no nameless files, or in memory";
  EXPECT_GT(row["values"]["seconds"], 0);
  EXPECT_GE(row["values"]["samples"], 1);
  EXPECT_EQ(files_left(), 0u);
}

TEST_F(DoctorProgram, LooksAtTheStoreOfTheSettings) {
  const std::string file = folder_.string() + "/ds.json";
  std::ofstream(file) << R"({"headrace": {"durable": "step", "store": "run-1", "nvme_paths": [")"
                      << folder_.string() << R"("]}})";
  const Ran ran = run({"--settings", file, "--model", "llama-3.1-405b", "--json", "-"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(row_in(ran.json(), "store")["value"], "not there");
  EXPECT_EQ(row_in(ran.json(), "room for it")["values"]["needed_bytes"], 24 * 405853388800);
  EXPECT_EQ(row_in(ran.json(), "directory")["values"]["path"], folder_.string());
  // The line alone will do, with its paths.
  const Ran line = run({folder_.string(), "--set", "headrace.store=run-1", "--set",
                        "headrace.durable=step", "--json", "-"});
  EXPECT_EQ(row_in(line.json(), "store")["value"], "not there") << line.err;
  EXPECT_TRUE(row_in(run({folder_.string(), "--json", "-"}).json(), "store").is_null());
  EXPECT_EQ(files_left(), 1u);
}

TEST_F(DoctorProgram, TakesTheCurrentDirectoryAndSeveralPaths) {
  const auto here = run({"--json", "-"}).json();
  EXPECT_EQ(row_in(here, "directory")["values"]["path"], fs::current_path().string());
  const auto both = run({folder_.string(), "/dev/shm", "--json=-"}).json();
  EXPECT_EQ(both["sections"].size(), here["sections"].size() + 1);
}

TEST_F(DoctorProgram, SaysThatFilesOfATmpfsAreInMemory) {
  if (!fs::is_directory("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm";
  const Ran ran = run({"/dev/shm", "--json", "-", "--require", "o_direct"});
  EXPECT_EQ(ran.exit_code, 3);
  const auto row = row_in(ran.json(), "O_DIRECT");
  EXPECT_EQ(row["mark"], "gap");
  EXPECT_EQ(row["value"], "tmpfs has none");
  EXPECT_NE(ran.err.find("o_direct is required, found: tmpfs has none (at /dev/shm)"),
            std::string::npos)
      << ran.err;
}

TEST_F(DoctorProgram, WorksAsNobodyInADirectoryThatMayOnlyBeRead) {
  if (::getuid() != 0) GTEST_SKIP() << "only root may become another user";
  fs::permissions(folder_.path(), fs::perms(0555));
  const Ran ran = run({".", "--json", "-"},
                      [&] { return ::chdir(folder_.string().c_str()) == 0 && become_nobody(); });
  ASSERT_EQ(ran.exit_code, 0) << ran.out << ran.err;
  const auto report = ran.json();
  EXPECT_EQ(row_in(report, "directory")["mark"], "gap");
  EXPECT_NE(row_in(report, "directory")["detail"].get<std::string>().find("EACCES"),
            std::string::npos);
  EXPECT_NE(row_in(report, "directory")["fix"], "");
  EXPECT_EQ(row_in(report, "O_DIRECT")["mark"], "unknown");
  if (swap::built_with_liburing() == swap::built_with_libaio()) {
    EXPECT_EQ(row_in(report, "io_uring")["mark"], row_in(report, "Linux AIO")["mark"]);
  }
}

TEST_F(DoctorProgram, MakesANoteAndNoMoreOfAMissingMemlock) {
  if (::getuid() != 0) GTEST_SKIP() << "only root may become another user";
  fs::permissions(folder_.path(), fs::perms(0777));
  const Ran ran = run({".", "--json", "-", "--require", "memlock=64KiB"}, [&] {
    const rlimit none{0, 0};
    return ::chdir(folder_.string().c_str()) == 0 && become_nobody() &&
           ::setrlimit(RLIMIT_MEMLOCK, &none) == 0;
  });
  EXPECT_EQ(ran.exit_code, 3) << ran.out << ran.err;
  const auto report = ran.json();
  EXPECT_EQ(row_in(report, "memlock")["mark"], "note");
  EXPECT_NE(row_in(report, "io_uring")["mark"], "gap");
  EXPECT_NE(row_in(report, "memlock")["consequence"].get<std::string>().find("may be refused"),
            std::string::npos);
  EXPECT_EQ(row_in(report, "directory")["mark"], "ok");
  EXPECT_EQ(report["counts"]["gap"], 0) << ran.out;
  EXPECT_NE(ran.err.find("memlock=64KiB is required, found: 0 B"), std::string::npos) << ran.err;
}

TEST_F(DoctorProgram, TellsThatAFilterRefusesAQueueAndWhatServesInstead) {
  struct Queue {
    const char *row, *name;
    long set_up;
    bool built;
  };
  for (const Queue& queue :
       {Queue{"io_uring", "io_uring", SYS_io_uring_setup, swap::built_with_liburing()},
        Queue{"Linux AIO", "libaio", SYS_io_setup, swap::built_with_libaio()}}) {
    const Ran ran = run({folder_.string(), "--json", "-", "--require", queue.name},
                        [&] { return swap::test::forbid(queue.set_up, EPERM); });
    if (ran.exit_code == 99) GTEST_SKIP() << "no seccomp filter can be set here";
    EXPECT_EQ(ran.exit_code, 3) << ran.err;
    const auto report = ran.json();
    const auto row = row_in(report, queue.row);
    EXPECT_EQ(row["mark"], "note") << row;
    EXPECT_EQ(row["values"]["built"], queue.built) << row;
    EXPECT_EQ(row["value"], queue.built ? "refused (EPERM)" : "not in this build") << row;
    EXPECT_NE(row["detail"].get<std::string>().find(queue.built ? "EPERM" : "this build has no"),
              std::string::npos)
        << row;
    EXPECT_NE(row["fix"], "");
    EXPECT_NE(row_in(report, "I/O queue")["value"], queue.row);
    EXPECT_EQ(report["missed"][0]["required"], queue.name);
  }
}

TEST_F(DoctorProgram, RefusesWithCauseConsequenceAndFix) {
  const std::string file = folder_.string() + "/file";
  std::ofstream(file) << "x";
  for (const auto& [words, expected] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"/nothing/here"}, "PATH '/nothing/here' cannot be reached: ENOENT"},
           {{file}, "is not a directory"},
           {{"--require", "io_urng"}, "Did you mean io_uring?"},
           {{"--require"}, "--require has no value"},
           {{"--requir=x"}, "Did you mean --require?"},
           {{"--model", "gpt2"}, "--model is for the room of a store"},
           {{"--settings", "/nothing/here"}, "'/nothing/here' cannot be read"},
           {{"--set", "headrace.durable=step"}, "headrace.store gives none"},
           {{"--json", "/nothing/here/report"}, "/nothing/here/report"}}) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.exit_code, 2) << expected << ": " << ran.err;
    EXPECT_NE(ran.err.find(expected), std::string::npos) << ran.err;
  }
  EXPECT_EQ(run({"/nothing/here", "--json", "-"}).json()["error"]["exit_code"], 2);
  EXPECT_EQ(run({"--help"}).exit_code, 0);
}

std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  for (int byte = 0; pipe != nullptr && (byte = std::fgetc(pipe)) != EOF;)
    text += static_cast<char>(byte);
  if (pipe != nullptr) ::pclose(pipe);
  return text;
}

TEST(HeadraceProgram, NeedsNoSharedLibraryButThoseOfLibc) {
  const std::string dynamic = output_of("readelf -d " HEADRACE_PROGRAM " 2>/dev/null");
  if (dynamic.empty()) GTEST_SKIP() << "there is no readelf";
  std::size_t needed = 0;
  for (const auto line : platform::split(dynamic, '\n')) {
    if (line.find("(NEEDED)") == std::string_view::npos) continue;
    ++needed;
    const bool of_libc = line.find("[libc.so.6]") != std::string_view::npos ||
                         line.find("[libm.so.6]") != std::string_view::npos ||
                         line.find("[ld-linux-x86-64.so.2]") != std::string_view::npos;
    EXPECT_TRUE(of_libc) << line;
  }
  EXPECT_GE(needed, 1u);
}

}  // namespace
}  // namespace headrace::tools::doctor_test
