// SPDX-License-Identifier: BSD-3-Clause
// Files of shared keys, as psktool, qemu and libnbd have them.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/core/option_words.hpp"
#include "rdma/transport/tls/secret.hpp"

namespace rtrs::tls {

/// A line of the file.
struct PskKey {
  std::string name;  ///< IDENTITY or IDENTITY/ID
  Secret secret;
};

/// The identity of `host1/2` and of `host1` is `host1`.
std::string_view identity_of(std::string_view key_name);

/// The reason why a text may not be the name of a user, as the end of a sentence; "" = it may.
std::string fault_of_identity(std::string_view identity);

/// Reads lines of NAME:HEX; empty ones and those that begin with # are left out. A key has 16 to 64
/// bytes.
///
/// Errors: a sentence with the number of the line, and no part of a key.
tl::expected<std::vector<PskKey>, std::string> parse_psk(std::string_view text);

/// The key of a client: that of this name, or the last one of this identity; "" = the only one.
/// `words` say how the name is set.
///
/// Errors: a sentence that says what to write.
tl::expected<const PskKey*, std::string> choose_key(const std::vector<PskKey>& keys,
                                                    std::string_view name,
                                                    const OptionWords& words);

}  // namespace rtrs::tls
