// SPDX-License-Identifier: Apache-2.0
// model_files.hpp: shapes from files. Of safetensors only the headers are read.
#pragma once
#include <string>

#include "model/model.hpp"

namespace headrace::tools {
// *.safetensors, all of one model, or else config.json of an architecture that families.hpp has.
// Throws Error kNotFound, kInvalidArgument, kUnsupported naming the file.
Model model_of_directory(const std::string& path);
// A JSON file {"groups": [{"name": "h.0", "parameters": [{"name": "w", "shape": [4, 8]}]}]}.
Model model_of_file(const std::string& path);
}  // namespace headrace::tools
