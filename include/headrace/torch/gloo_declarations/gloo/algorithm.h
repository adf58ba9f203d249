// SPDX-License-Identifier: Apache-2.0
// Included by torch's ProcessGroupGloo.hpp, which takes nothing out of it.
#pragma once
