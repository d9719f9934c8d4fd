// SPDX-License-Identifier: BSD-3-Clause
// UUIDs as people write them.
#pragma once
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "rdma/wire/endian.hpp"

namespace rnbd {

/// `01234567-89ab-cdef-0123-456789abcdef`; "" for zeros, which stand for an unknown one.
std::string uuid_text(const rtrs::wire::Uuid& uuid);

/// Reads that form, in capitals as well, and without hyphens. Zeros are refused.
///
/// Errors: a sentence with the right form.
tl::expected<rtrs::wire::Uuid, std::string> parse_uuid(std::string_view text);

}  // namespace rnbd
