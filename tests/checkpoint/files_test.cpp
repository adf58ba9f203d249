// SPDX-License-Identifier: Apache-2.0
// files_test: what the file system refuses names the path, the cause and what follows.
#include "checkpoint/files.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "headrace/error.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::checkpoint::files_test {
namespace {
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(FilesOfASave, AreRemovedAndRenamedOrNamedInTheError) {
  const testing::TemporaryDirectory folder;
  const std::string here = folder.string() + "/here", gone = folder.string() + "/gone";
  write_file(here, {});
  remove_file(gone);
  const std::string removal = refusal_of([&] { remove_file(folder.string()); });
  EXPECT_NE(removal.find("cannot remove " + folder.string()), std::string::npos) << removal;
  EXPECT_NE(removal.find("no checkpoint was made"), std::string::npos) << removal;
  const std::string renaming = refusal_of([&] { rename_file(gone, here); });
  EXPECT_NE(renaming.find("cannot rename " + gone + " to " + here), std::string::npos) << renaming;
  EXPECT_TRUE(is_there(here));
  rename_file(here, gone);
  EXPECT_FALSE(is_there(here));
  remove_file(gone);
  EXPECT_FALSE(is_there(gone));
}

TEST(FilesOfASave, ThatCannotBeLookedForAreNotTakenForMissing) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/" + std::string(5000, 'x');
  const std::string refusal = refusal_of([&] { is_there(path); });
  EXPECT_NE(refusal.find("cannot look for "), std::string::npos) << refusal;
}
}  // namespace
}  // namespace headrace::checkpoint::files_test
