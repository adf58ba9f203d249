// SPDX-License-Identifier: Apache-2.0
#include "machine/nvme_health.hpp"

#include <fcntl.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>

#include <array>
#include <cerrno>

#include "base/unique_fd.hpp"

namespace headrace::tools {
namespace {
constexpr std::uint8_t kGetLogPage = 0x02;
constexpr std::uint32_t kHealthPage = 0x02;
constexpr std::uint32_t kWholeDrive = 0xffffffff;  // not one namespace of it
constexpr double kDataUnitBytes = 512 * 1000;
constexpr double kZeroCelsius = 273;  // the page is in whole kelvins

// Little-endian; counters of 16 bytes lose their last digits, which nobody reads.
double number_at(std::span<const std::byte> page, std::size_t offset, std::size_t size) {
  double value = 0;
  for (std::size_t i = size; i > 0; --i)
    value = value * 256 + std::to_integer<int>(page[offset + i - 1]);
  return value;
}
}  // namespace

NvmeHealth decode_nvme_health(std::span<const std::byte, kNvmeHealthBytes> page) {
  const int warnings = std::to_integer<int>(page[0]);
  NvmeHealth health;
  health.spare_low = (warnings & 1) != 0;
  health.unreliable = (warnings & 4) != 0;
  health.read_only = (warnings & 8) != 0;
  health.temperature_c = number_at(page, 1, 2) - kZeroCelsius;
  health.spare_percent = std::to_integer<std::uint32_t>(page[3]);
  health.used_percent = std::to_integer<std::uint32_t>(page[5]);
  health.written_bytes = number_at(page, 48, 16) * kDataUnitBytes;
  health.media_errors = number_at(page, 160, 16);
  return health;
}

int read_nvme_health(const std::string& controller, NvmeHealth& health) {
  const base::UniqueFd drive(::open(("/dev/" + controller).c_str(), O_RDONLY | O_CLOEXEC));
  if (!drive) return errno;
  std::array<std::byte, kNvmeHealthBytes> page{};
  nvme_admin_cmd command{};
  command.opcode = kGetLogPage;
  command.nsid = kWholeDrive;
  command.addr = reinterpret_cast<std::uintptr_t>(page.data());
  command.data_len = page.size();
  command.cdw10 = (page.size() / 4 - 1) << 16 | kHealthPage;
  const int status = ::ioctl(drive.get(), NVME_IOCTL_ADMIN_CMD, &command);
  if (status < 0) return errno;
  if (status > 0) return EIO;  // the drive's own status
  health = decode_nvme_health(page);
  return 0;
}
}  // namespace headrace::tools
