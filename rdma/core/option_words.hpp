// SPDX-License-Identifier: BSD-3-Clause
// The phrases of messages that name options, in the words of those who set them.
#pragma once

namespace rtrs {

/// A user of the programs sets options of a command line or a URI. A user of the library sets
/// members of its structures, and has fewer of them.
struct OptionWords {
  // A server about its own options.
  const char* many_sessions;
  const char* many_of_user;
  const char* large_user;
  const char* large_path;
  const char* lent_memory;
  const char* lent_to_user;
  const char* memory_limit;
  const char* max_connections;
  const char* hanging_storage;
  const char* lower_queue_depth;
  const char* tls_is_off;
  const char* wants_proof;
  // A client about its server.
  const char* full_server;
  const char* large_queue_depth;
  const char* needs_no_proof;
  const char* server_id_tells;  ///< with a blank in front; "" = no option says it
  const char* trust_path;
  // About keys.
  const char* use_tls;
  const char* use_proof;
  const char* choose_key;
  const char* name_keys;
  const char* certificates;
};

/// The words of the programs; the library has its own (rdma/library/options.cpp).
inline constexpr OptionWords kProgramWords{
    .many_sessions = "too many sessions (--max-sessions)",
    .many_of_user = "too many sessions of one user (--max-sessions-per-user)",
    .large_user = "no memory left for another path of this user (--memory-limit-per-user)",
    .large_path = "no memory left for another path's chunks (--memory-limit)",
    .lent_memory = "requests under way use the memory of another path (--memory-limit)",
    .lent_to_user =
        "requests of this user use the memory of another path (--memory-limit-per-user)",
    .memory_limit = "--memory-limit",
    .max_connections = "--max-connections",
    .hanging_storage =
        "storage hangs: what it has not ended of the session's lost paths holds more than a "
        "quarter of the memory (--memory-limit)",
    .lower_queue_depth = "lower --queue-depth, or leave --always-invalidate out",
    .tls_is_off = "it begins with TLS, which this listener does not have (--tls)",
    .wants_proof = "it offers no proof of a key, which this listener requires (auth=psk)",
    .full_server =
        "raise its --memory-limit, --max-sessions or --max-connections, or what one user may have",
    .large_queue_depth = "lower the server's --queue-depth",
    .needs_no_proof =
        "the server does not authenticate: let it ask for auth=psk, or leave the key out",
    .server_id_tells = " (server-id= does)",
    .trust_path = "`rnbd-ctl SOCKET reconnect ADDRESS`",
    .use_tls = "write rnbds+tcp:// and name your keys",
    .use_proof = "name a key with auth-psk-file",
    .choose_key =
        "name yours as NAME@HOST in the URI, or with tls-username=NAME (auth-username= of a "
        "proof)",
    .name_keys =
        "name a file of shared ones with tls-psk, or, for TLS, a directory with tls-certificates",
    .certificates = "tls-certificates",
};

}  // namespace rtrs
