// SPDX-License-Identifier: BSD-3-Clause
// Input: a file of shared keys.
#include "rdma/transport/tls/psk_file.hpp"

#include <algorithm>
#include <string>

#include "tests/fuzz/fuzz.hpp"

using namespace rtrs::tls;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto keys = parse_psk(text);
  if (!keys) {
    fuzz::require(!keys.error().empty(), "a file that is refused is refused with a sentence");
    return 0;
  }
  fuzz::require(!keys->empty(), "a file that is taken has a key");
  for (const PskKey& key : *keys) {
    fuzz::require(fault_of_identity(identity_of(key.name)).empty(), "every user has a good name");
    const std::size_t bytes = key.secret.bytes().size();
    fuzz::require(bytes >= 16 && bytes <= Secret::kMost, "every key is long enough");
    const auto found = choose_key(*keys, key.name, rtrs::kProgramWords);
    fuzz::require(found && *found == &key, "every key is found by its name");
  }
  return 0;
}
