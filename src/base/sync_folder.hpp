// SPDX-License-Identifier: Apache-2.0
// sync_folder.hpp: makes the names in a folder durable. A file that was synced may still lose its
// name to a power failure.
#pragma once
#include <string>

namespace headrace::base {
// Of a folder, or of a link to one; "": the present one. Returns an errno, or 0, also where the
// file system knows no sync of a folder.
int sync_folder(const std::string& path) noexcept;
// The folder that has the name of this file or folder: "." for "a".
std::string folder_above(const std::string& path);
}  // namespace headrace::base
