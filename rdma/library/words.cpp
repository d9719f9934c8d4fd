// SPDX-License-Identifier: BSD-3-Clause
// The words of rtrs.h for options that messages name.
#include "rdma/core/option_words.hpp"

namespace rtrs::library {
namespace {

constexpr OptionWords kLibraryWords{
    .many_sessions = "too many sessions (max_sessions)",
    .many_of_user = "too many sessions of one user",
    .large_user = "no memory left for another path of this user",
    .large_path = "no memory left for another path's messages (memory_limit)",
    .hanging_storage =
        "the handler hangs: what it has not finished of the session's lost paths holds more than "
        "a quarter of the memory (memory_limit)",
    .lower_queue_depth = "lower queue_depth",
    .tls_is_off = "it begins with TLS, which this server does not have (tls)",
    .wants_proof = "it offers no proof of a key, which this server requires (auth_psk)",
    .full_server = "raise its memory_limit or max_sessions",
    .large_queue_depth = "lower the server's queue_depth",
    .needs_no_proof =
        "the server asks nobody for a proof: set its auth_psk, or leave the client's out",
    .server_id_tells = "",
    .trust_path = "remove the path and add it again",
    .use_tls = "set tls to RTRS_TLS_REQUIRE and name your keys",
    .use_proof = "set auth_psk to a file of keys",
    .choose_key = "name yours in tls_username, or auth_username of a proof",
    .name_keys =
        "set tls_psk (auth_psk of a proof) to a file of shared ones, or, for TLS, "
        "tls_certificates to a directory",
    .certificates = "tls_certificates",
};

/// Before main(), or while the library is loaded.
[[maybe_unused]] const bool are_in_use = [] {
  option_words = &kLibraryWords;
  return true;
}();

}  // namespace
}  // namespace rtrs::library
