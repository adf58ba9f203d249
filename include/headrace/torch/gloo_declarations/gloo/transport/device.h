// SPDX-License-Identifier: Apache-2.0
// What torch's ProcessGroupGloo.hpp names of Gloo, whose headers a torch wheel lacks. Nothing here
// is called or copied by the program: torch makes these objects and passes them around.
#pragma once

namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport
