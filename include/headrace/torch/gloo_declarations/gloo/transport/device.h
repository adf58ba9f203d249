// SPDX-License-Identifier: Apache-2.0
// The declarations of Gloo that torch's ProcessGroupGloo.hpp needs: a torch wheel lacks Gloo's
// headers. Nothing here is called or copied by the program: torch makes these objects and passes
// them around.
#pragma once

namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport
