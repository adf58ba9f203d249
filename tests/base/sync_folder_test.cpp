// SPDX-License-Identifier: Apache-2.0
#include "base/sync_folder.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace headrace::base::sync_folder_test {
namespace {
namespace fs = std::filesystem;

class SyncFolder : public ::testing::Test {
 protected:
  SyncFolder() {
    std::string name = (fs::current_path() / "sync-folder-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~SyncFolder() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(SyncFolder, FollowsALinkAndNamesWhatIsNone) {
  EXPECT_EQ(sync_folder(folder_.string()), 0);
  EXPECT_EQ(sync_folder(""), 0);
  fs::create_directory_symlink(folder_, folder_ / "link");
  EXPECT_EQ(sync_folder((folder_ / "link").string()), 0);
  std::ofstream(folder_ / "file") << "";
  EXPECT_EQ(sync_folder((folder_ / "file").string()), ENOTDIR);
  EXPECT_EQ(sync_folder((folder_ / "none").string()), ENOENT);
}

TEST(FolderAbove, IsThePresentOneForABareName) {
  EXPECT_EQ(folder_above("a"), ".");
  EXPECT_EQ(folder_above("a/b"), "a");
  EXPECT_EQ(folder_above("/b"), "/");
}
}  // namespace
}  // namespace headrace::base::sync_folder_test
