// SPDX-License-Identifier: BSD-3-Clause
// The storage behind the votes of a server: none.
#pragma once

#include <memory>
#include <tl/expected.hpp>

#include "bridge/backend/backend.hpp"

namespace rnbd::mirror {

/// The disk `.vote` has no bytes, and at every server the same identity.
tl::expected<std::unique_ptr<Backend>, Failure> open_votes();

}  // namespace rnbd::mirror
