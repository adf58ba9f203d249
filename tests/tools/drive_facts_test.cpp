// SPDX-License-Identifier: Apache-2.0
// Mounts and drives read from made-up /proc and /sys trees, and once from the real ones.
#include "machine/drive_facts.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "platform/block_devices.hpp"
#include "platform/fake_root.hpp"
#include "platform/mounts.hpp"

namespace headrace::tools::drive_facts_test {
namespace {
using namespace platform;
constexpr const char* kPort = "/sys/devices/pci0000:00/0000:00:01.1";
const std::string kNvme = std::string(kPort) + "/0000:01:00.0/nvme/nvme0";
const std::string kNamespace = kNvme + "/nvme0n1";

class DriveFactsTest : public ::testing::Test {
 protected:
  void mount(const std::string& lines) const { root_.write("/proc/self/mountinfo", lines); }
  DriveFacts facts(const std::string& path) const { return drive_facts(path, root_.path()); }

  void add_pci_link(const std::string& folder, const char* speed, int width, const char* max_speed,
                    int max_width) const {
    root_.write(folder + "/current_link_speed", std::string(speed) + " GT/s PCIe\n");
    root_.write(folder + "/current_link_width", std::to_string(width) + "\n");
    root_.write(folder + "/max_link_speed", std::string(max_speed) + " GT/s PCIe\n");
    root_.write(folder + "/max_link_width", std::to_string(max_width) + "\n");
  }
  // nvme0n1 with one partition, in a slot that is slower than the drive.
  void add_nvme() const {
    root_.write(kNvme + "/transport", "pcie\n");
    root_.write(kNamespace + "/queue/scheduler", "[none] mq-deadline kyber\n");
    root_.write(kNamespace + "/queue/write_cache", "write back\n");
    root_.write(kNamespace + "/queue/max_sectors_kb", "1280\n");
    root_.write(kNamespace + "/queue/max_hw_sectors_kb", "2048\n");
    root_.write(kNamespace + "/queue/rotational", "0\n");
    root_.write(kNamespace + "/dev", "259:0\n");
    root_.write(kNamespace + "/size", "3907029168\n");
    root_.write(kNvme + "/model", "Samsung SSD 990 PRO 2TB                 \n");
    root_.link(kNamespace + "/device", kNvme);
    root_.write(kNamespace + "/nvme0n1p2/partition", "2\n");
    add_pci_link(std::string(kPort) + "/0000:01:00.0", "8.0", 4, "16.0", 4);
    add_pci_link(kPort, "8.0", 4, "8.0", 16);
    root_.link("/sys/dev/block/259:2", kNamespace + "/nvme0n1p2");
    root_.link("/sys/class/block/nvme0n1p2", kNamespace + "/nvme0n1p2");
  }
  std::string virtual_device(const std::string& number, const std::string& name) const {
    const std::string folder = "/sys/devices/virtual/block/" + name;
    root_.link("/sys/dev/block/" + number, folder);
    return folder;
  }
  const test::FakeRoot root_;
};

TEST_F(DriveFactsTest, FollowAPartitionToItsDiskAndThePcieLink) {
  add_nvme();
  mount("24 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,discard\n");
  const DriveFacts found = facts("/home/user/swap");
  EXPECT_EQ(found.mount_point, "/");
  EXPECT_EQ(found.file_system, "ext4");
  EXPECT_EQ(found.mount_options, "rw,relatime,discard");
  EXPECT_EQ(found.device, "nvme0n1p2");
  EXPECT_EQ(found.stack, "partition");
  EXPECT_EQ(model_text(found.chain, root_.path()), "Samsung SSD 990 PRO 2TB");
  ASSERT_EQ(found.disks.size(), 1u);
  const Disk& disk = found.disks[0];
  EXPECT_EQ(disk.name, "nvme0n1");
  EXPECT_EQ(found.chain.back().number, "259:0");
  EXPECT_EQ(disk.transport, "pcie");
  EXPECT_EQ(disk.scheduler, "none");
  EXPECT_EQ(disk.write_cache, "write back");
  EXPECT_EQ(disk.max_sectors_kb, 1280u);
  EXPECT_EQ(disk.max_hw_sectors_kb, 2048u);
  EXPECT_EQ(disk.rotational, false);
  EXPECT_EQ(disk.size_bytes, 3907029168u * std::uint64_t{512});
  ASSERT_TRUE(disk.link.has_value());
  EXPECT_EQ(disk.link->address, "0000:01:00.0");
  EXPECT_EQ(disk.link->speed_gt, 8);
  EXPECT_EQ(disk.link->width, 4u);
  EXPECT_EQ(disk.link->max_speed_gt, 16);
  EXPECT_EQ(disk.link->slot_max_speed_gt, 8);
  EXPECT_EQ(disk.link->slot_max_width, 16u);
}

TEST_F(DriveFactsTest, GoDownThroughLvmAndDmCryptToThePartition) {
  add_nvme();
  const std::string volume = virtual_device("253:1", "dm-1");
  const std::string crypt = virtual_device("253:0", "dm-0");
  root_.write(volume + "/dm/uuid", "LVM-abc\n");
  root_.write(volume + "/dm/name", "vg-home\n");
  root_.link(volume + "/slaves/dm-0", crypt);
  root_.write(crypt + "/dm/uuid", "CRYPT-LUKS2-123-root\n");
  root_.link(crypt + "/slaves/nvme0n1p2", kNamespace + "/nvme0n1p2");
  mount("24 1 253:1 / / rw - xfs /dev/mapper/vg-home rw,noquota\n");
  const DriveFacts found = facts("/data");
  EXPECT_EQ(found.device, "dm-1");
  EXPECT_EQ(found.stack, "LVM, dm-crypt, partition");
  ASSERT_EQ(found.chain.size(), 4u);
  EXPECT_EQ(found.chain[0].detail, "vg-home");
  EXPECT_EQ(found.chain[1].kind, BlockDeviceKind::kCrypt);
  EXPECT_EQ(found.chain[3].kind, BlockDeviceKind::kDisk);
  EXPECT_EQ(model_text(found.chain, root_.path()), "Samsung SSD 990 PRO 2TB");
}

TEST_F(DriveFactsTest, NameEveryDiskOfAnArrayOnceWithTheLevel) {
  const std::string array = virtual_device("9:0", "md0");
  root_.write(array + "/md/level", "raid0\n");
  for (const char* name : {"sda", "sdb", "sdc"}) {
    const std::string disk = std::string("/sys/devices/pci0/ata1/host0/block/") + name;
    root_.write(disk + "/device/model", name[2] == 'c' ? "Other\n" : "Same 1TB\n");
    root_.write(disk + "/queue/rotational", "1\n");
    root_.link(array + "/slaves/" + name, disk);
  }
  mount("24 1 9:0 / /mnt rw - ext4 /dev/md0 rw\n");
  const DriveFacts found = facts("/mnt/x");
  EXPECT_EQ(found.stack, "RAID (raid0)");
  EXPECT_EQ(found.disks.size(), 3u);
  EXPECT_EQ(model_text(found.chain, root_.path()), "2 x Same 1TB, Other");
  EXPECT_EQ(found.disks[0].rotational, true);
  EXPECT_EQ(found.disks[0].transport, "sata");
}

TEST_F(DriveFactsTest, NameTheModelsOfSeveralPathsOnceInAnOrderOfTheirOwn) {
  add_nvme();
  const std::string disk = "/sys/devices/pci0/ata1/host0/block/sda";
  root_.write(disk + "/device/model", "Other\n");
  root_.link("/sys/dev/block/8:0", disk);
  mount(
      "24 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n25 24 8:0 / /mnt rw - ext4 /dev/sda rw\n"
      "26 24 0:30 / /tmp rw - tmpfs tmpfs rw\n");
  const std::string both = "Other; Samsung SSD 990 PRO 2TB";
  EXPECT_EQ(models_text({"/a", "/mnt/b", "/mnt/c", "/tmp"}, root_.path()), both);
  EXPECT_EQ(models_text({"/mnt/b", "/a"}, root_.path()), both);
  EXPECT_EQ(models_text({"/tmp"}, root_.path()), "");
}

TEST_F(DriveFactsTest, FindTheControllerOfANamespaceWithSeveralPaths) {
  const std::string head = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0";
  root_.write(kNvme + "/transport", "pcie\n");
  add_pci_link(std::string(kPort) + "/0000:01:00.0", "32.0", 4, "32.0", 4);
  root_.write(head + "/model", "KIOXIA\n");
  root_.write(head + "/nvme0n1/queue/rotational", "0\n");
  root_.link(head + "/nvme0", kNvme);
  root_.link(head + "/nvme0n1/device", head);
  root_.link("/sys/dev/block/259:0", head + "/nvme0n1");
  mount("24 1 259:0 / / rw - xfs /dev/nvme0n1 rw\n");
  const DriveFacts found = facts("/");
  EXPECT_EQ(found.stack, "disk");
  ASSERT_EQ(found.disks.size(), 1u);
  EXPECT_EQ(found.disks[0].model, "KIOXIA");
  EXPECT_EQ(found.disks[0].transport, "pcie");
  ASSERT_TRUE(found.disks[0].link.has_value());
  EXPECT_EQ(found.disks[0].link->speed_gt, 32);
}

TEST_F(DriveFactsTest, TakeTheSourceWhereTheFileSystemHasANumberOfItsOwn) {
  add_nvme();
  mount("24 1 0:31 /@home /home rw - btrfs /dev/nvme0n1p2 rw,ssd\n");
  EXPECT_EQ(facts("/home/u").device, "nvme0n1p2");
  mount("24 1 0:31 / /home rw - nfs4 server:/export rw\n");
  const DriveFacts remote = facts("/home/u");
  EXPECT_EQ(remote.source, "server:/export");
  EXPECT_EQ(remote.file_system, "nfs4");
  EXPECT_TRUE(remote.chain.empty());
  EXPECT_EQ(model_text(remote.chain, root_.path()), "");
}

TEST_F(DriveFactsTest, AreOfTheLongestMountPointAboveThePathAndOfTheLastThere) {
  mount(
      "24 1 259:2 / / rw - ext4 /dev/a rw\n"
      "25 24 0:40 / /data rw - tmpfs t rw\n"
      "26 24 0:41 / /data\\040two rw - xfs b rw\n"
      "27 24 0:42 / /data ro - nfs server:/x rw\n");
  EXPECT_EQ(facts("/database").file_system, "ext4");
  EXPECT_EQ(facts("/data").file_system, "nfs");
  EXPECT_EQ(facts("/data/deeper").mount_options, "ro,rw");
  EXPECT_EQ(facts("/data two/x").file_system, "xfs");
  EXPECT_EQ(facts("relative").file_system, "");
}

TEST_F(DriveFactsTest, AreEmptyWhereNothingCanBeRead) {
  const DriveFacts none = facts("/");
  EXPECT_EQ(none.file_system, "");
  EXPECT_TRUE(none.chain.empty());
  mount("24 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\nnonsense\n25 - \n");
  const DriveFacts without_sys = facts("/");
  EXPECT_EQ(without_sys.file_system, "ext4");
  EXPECT_EQ(without_sys.device, "");
  EXPECT_EQ(model_text(without_sys.chain, root_.path()), "");
}

TEST_F(DriveFactsTest, StopWhereDevicesStandOnEachOther) {
  const std::string one = virtual_device("253:0", "dm-0"), two = virtual_device("253:1", "dm-1");
  root_.link(one + "/slaves/dm-1", two);
  root_.link(two + "/slaves/dm-0", one);
  mount("24 1 253:0 / / rw - ext4 /dev/dm-0 rw\n");
  EXPECT_EQ(facts("/").chain.size(), 2u);
}

TEST(RealDriveFacts, AgreeWithTheKernelOnWhatTheWorkingDirectoryIsOn) {
  const DriveFacts found = drive_facts(".");
  const auto mount = mount_of(".");
  if (!mount) {  // in a chroot the one that it lies in is not listed
    EXPECT_EQ(found.file_system, "");
    EXPECT_EQ(found.mount_point, "");
    return;
  }
  EXPECT_EQ(found.file_system, mount->file_system);
  EXPECT_TRUE(std::filesystem::current_path().string().starts_with(found.mount_point));
  EXPECT_TRUE(lists_word(found.mount_options, "rw") || lists_word(found.mount_options, "ro"));
}

TEST(PcieLinkSpeed, CountsTheBitsThatCarryNoData) {
  EXPECT_NEAR(link_gb_per_second(5, 4), 2.0, 1e-9);
  EXPECT_NEAR(link_gb_per_second(16, 4), 7.877, 0.001);
  EXPECT_EQ(link_gb_per_second(0, 4), 0);
}
}  // namespace
}  // namespace headrace::tools::drive_facts_test
