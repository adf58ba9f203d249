# SPDX-License-Identifier: Apache-2.0
"""Pages and comparisons made from the JSON documents of the program `headrace`."""
