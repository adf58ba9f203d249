// SPDX-License-Identifier: Apache-2.0
// handles_of_c.hpp: the two tables behind headrace/c.h: engines and leases.
#pragma once
#include "bindings/c/handles.hpp"
#include "headrace/c.h"
#include "headrace/engine.hpp"

namespace headrace::bindings {
using EngineHandles = HandleTable<Engine>;
using GatheredHandles = HandleTable<Gathered>;
// Never destroyed: a host's threads may outlive main().
extern EngineHandles& engines;
extern GatheredHandles& leases;

inline EngineHandles::Use use(headrace_engine* handle) { return engines.use(handle); }
inline GatheredHandles::Use use(headrace_gathered* handle) { return leases.use(handle); }
}  // namespace headrace::bindings
