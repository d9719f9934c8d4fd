// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/options.hpp"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <random>
#include <utility>

#include "rdma/library/call_message.hpp"
#include "rdma/library/call_operation.hpp"
#include "rdma/library/uri.hpp"
#include "rdma/printable.hpp"

namespace rtrs::library {
namespace {

/// Fewer than the programs have: they share the descriptors of somebody else's process.
constexpr unsigned kMaxSessions = 256;
constexpr unsigned kMaxConnections = 1024;

using std::chrono::milliseconds;

constexpr std::uint32_t kFeatures =
    wire::kFeatureExactlyOnce | wire::kFeatureAccessNotice | wire::kFeatureRaces | kFeatureCalls;

/// The words of rtrs.h for options that messages name.
constexpr OptionWords kLibraryWords{
    .many_sessions = "too many sessions (max_sessions)",
    .many_of_user = "too many sessions of one user",
    .large_user = "no memory left for another path of this user",
    .large_path = "no memory left for another path's messages (memory_limit)",
    .lent_memory = "requests under way use the memory of another path (memory_limit)",
    .lent_to_user = "requests of this user use the memory of another path",
    .memory_limit = "memory_limit",
    .max_connections = "its limit of connections",
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

/// 0 is the default, and for times without a limit RTRS_FOREVER is none.
Duration time_of(unsigned value, Duration otherwise, Duration forever = {}) {
  if (value == RTRS_FOREVER) return forever;
  return value == 0 ? otherwise : Duration{milliseconds{value}};
}

template <class Options>
Log log_of(const Options& options) {
  if (options.log == nullptr) return nullptr;
  return
      [log = options.log, context = options.log_context](LogLevel level, const std::string& line) {
        log(context, static_cast<rtrs_log_level>(level), on_one_line(line).c_str());
      };
}

std::string text_of(const char* text) { return text != nullptr ? text : ""; }

tl::unexpected<Failure> wrong_options(std::string text) {
  return tl::unexpected(Failure{EINVAL, std::move(text)});
}

/// A name that is empty comes from a setting that is missing: without keys, everybody would be
/// served.
template <class Options>
tl::expected<void, Failure> check_names_of_keys(const Options& options) {
  const auto empty = [](const char* text) { return text != nullptr && *text == '\0'; };
  for (const auto& [name, value] : {std::pair{"tls_psk", options.tls_psk},
                                    std::pair{"tls_certificates", options.tls_certificates},
                                    std::pair{"auth_psk", options.auth_psk}}) {
    if (empty(value))
      return wrong_options(std::string{name} + " is empty: name the keys, or leave it NULL");
  }
  return {};
}

/// The name of a key is of no use without keys.
tl::expected<void, Failure> check_names_of_user(const rtrs_client_options& options) {
  if (options.tls_username != nullptr && options.tls == RTRS_TLS_OFF)
    return wrong_options(
        "tls_username is set, but tls is off: set tls to RTRS_TLS_REQUIRE as well");
  if (options.auth_username != nullptr && options.auth_psk == nullptr)
    return wrong_options("auth_username is set, but there are no keys: set auth_psk as well");
  return {};
}

/// Of a client or a server; those check the combinations.
template <class Options, class Result>
tl::expected<void, Failure> read_tls(const Options& options, Result& result) {
  if (options.tls > RTRS_TLS_REQUIRE) {
    return wrong_options(
        "tls is RTRS_TLS_OFF, RTRS_TLS_ON (of a server: clients choose) or RTRS_TLS_REQUIRE");
  }
  if (auto named = check_names_of_keys(options); !named) return named;
  result.tls = static_cast<TlsMode>(options.tls);
  result.tls_keys.psk = text_of(options.tls_psk);
  result.tls_keys.certificates = text_of(options.tls_certificates);
  result.tls_keys.verify_peer = options.tls_no_verify_peer == 0;
  if ((result.tls == TlsMode::off) == result.tls_keys.none()) return {};
  return wrong_options(
      result.tls == TlsMode::off
          ? "there are keys, but tls is off: set tls to RTRS_TLS_REQUIRE as well"
          : "TLS needs keys: set tls_psk to a file of them, or tls_certificates to the "
            "directory of the certificates");
}

/// A server has one file of keys, for TLS and for proofs.
tl::expected<void, Failure> read_proof(const rtrs_server_options& options, ServerOptions& result) {
  const std::string keys = text_of(options.auth_psk);
  if (keys.empty()) return {};
  if (!result.tls_keys.psk.empty() && result.tls_keys.psk != keys) {
    return wrong_options("tls_psk and auth_psk name different files: a server has one for both");
  }
  result.tls_keys.psk = keys;
  result.auth = AuthMode::psk;
  return {};
}

/// Unique among all clients of a server.
std::string name_of_its_own() {
  static std::atomic<unsigned> serial{0};
  std::random_device random;
  std::string program = program_invocation_short_name;
  std::erase_if(program, [](char c) { return c == '.' || c == '/' || c <= ' ' || c > '~'; });
  program.resize(std::min<std::size_t>(program.size(), 64));
  return program + "-" + std::to_string(getpid()) + "-" + std::to_string(++serial) + "-" +
         std::to_string(random());
}

}  // namespace

void tell(const Failure& failure, rtrs_error* error) {
  errno = failure.error;
  if (error == nullptr) return;
  error->code = failure.error;
  const std::string text = on_one_line(failure.text);
  const std::size_t length = std::min(text.size(), sizeof(error->text) - 1);
  std::memcpy(error->text, text.data(), length);
  error->text[length] = '\0';
}

tl::expected<ClientOptions, Failure> client_settings(const rtrs_client_options& options,
                                                     std::string name) {
  const auto policy = parse_policy(options.policy != nullptr ? options.policy : "min-inflight");
  if (!policy) return tl::unexpected(policy.error());
  ClientOptions result;
  result.words = &kLibraryWords;
  if (options.session_name != nullptr) name = options.session_name;
  result.session_name = name.empty() ? name_of_its_own() : std::move(name);
  result.policy = *policy;
  result.lanes = options.lanes;
  result.no_path_timeout = time_of(options.no_path_timeout_ms, result.no_path_timeout);
  const Duration for_ever = std::chrono::hours{24 * 365};
  result.connect_timeout = time_of(options.connect_timeout_ms, result.connect_timeout, for_ever);
  result.heartbeat_interval = time_of(options.heartbeat_interval_ms, result.heartbeat_interval);
  if (options.heartbeat_misses != 0) result.heartbeat_misses = options.heartbeat_misses;
  result.spin = std::chrono::microseconds{options.spin_us};
  result.header_digest = result.data_digest = options.no_digests == 0;
  result.require_extension = true;
  result.log = log_of(options);
  if (auto read = read_tls(options, result); !read) return tl::unexpected(read.error());
  if (auto named = check_names_of_user(options); !named) return tl::unexpected(named.error());
  result.tls_keys.username = text_of(options.tls_username);
  if (const std::string keys = text_of(options.auth_psk); !keys.empty()) {
    result.auth_keys.emplace();
    result.auth_keys->psk = keys;
    result.auth_keys->username = text_of(options.auth_username);
  }
  return result;
}

tl::expected<ClientOptions, Failure> client_options(const char* uri,
                                                    const rtrs_client_options& options,
                                                    RecoveryHandler& recovery) {
  auto parsed = parse_uri(uri != nullptr ? uri : "");
  if (!parsed) return tl::unexpected(parsed.error());
  auto result = client_settings(options, parsed->name);
  if (!result) return result;
  result->paths = std::move(parsed->paths);
  result->no_path_error = kNoPathError;
  result->features = kFeatures;
  result->recovery = &recovery;
  return result;
}

tl::expected<ServerOptions, Failure> server_options(const char* uri,
                                                    const rtrs_server_options& options) {
  auto parsed = parse_uri(uri != nullptr ? uri : "");
  if (!parsed) return tl::unexpected(parsed.error());
  if (!parsed->name.empty()) {
    return wrong_options("a server has no session name: leave '/" + parsed->name +
                         "' out of the URI");
  }
  ServerOptions result;
  result.words = &kLibraryWords;
  for (const PathAddress& path : parsed->paths) {
    result.listen.push_back({path.transport, path.host, path.port});
  }
  result.reactors = options.loops == 0 ? 1 : options.loops;
  if (options.queue_depth != 0) result.queue_depth = options.queue_depth;
  if (options.max_io_size != 0) result.max_io_size = options.max_io_size;
  result.max_sessions = options.max_sessions != 0 ? options.max_sessions : kMaxSessions;
  result.max_connections = kMaxConnections;
  result.memory_limit = options.memory_limit;
  result.session_linger =
      time_of(options.session_linger_ms, std::chrono::seconds{30}, std::chrono::hours{24 * 365});
  result.heartbeat_interval = time_of(options.heartbeat_interval_ms, result.heartbeat_interval);
  if (options.heartbeat_misses != 0) result.heartbeat_misses = options.heartbeat_misses;
  result.header_digest = result.data_digest = options.no_digests == 0;
  result.features = kFeatures;
  result.log = log_of(options);
  if (auto read = read_tls(options, result); !read) return tl::unexpected(read.error());
  if (auto read = read_proof(options, result); !read) return tl::unexpected(read.error());
  return result;
}

}  // namespace rtrs::library
