// SPDX-License-Identifier: Apache-2.0
// torch's ProcessGroupGloo.hpp includes this file, but uses nothing in it.
#pragma once
