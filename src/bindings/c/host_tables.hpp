// SPDX-License-Identifier: Apache-2.0
// host_tables.hpp: implements the seams of device and ranks with a C host's tables of functions.
#pragma once
#include <memory>

#include "headrace/c.h"
#include "headrace/collective.hpp"
#include "headrace/device.hpp"

namespace headrace::bindings {
// These copy the table. They throw kInvalidArgument and name a function that is missing.
std::shared_ptr<Device> make_host_device(const headrace_device* table);
std::shared_ptr<Collective> make_host_collective(const headrace_collective* table);

// Convert between the C and the C++ form, which have the same fields.
headrace_accumulation to_c(const Accumulation& work) noexcept;
Accumulation from_c(const headrace_accumulation& work);
DType dtype_from_c(headrace_dtype dtype);
headrace_dtype dtype_to_c(DType dtype) noexcept;
}  // namespace headrace::bindings
