// SPDX-License-Identifier: BSD-3-Clause
// Judges settings that are right one by one: whether they go together, and with this machine.
#include <algorithm>
#include <string>

#include "bridge/daemon/server/rights_check.hpp"
#include "bridge/daemon/server/settings.hpp"
#include "rdma/wire/immediate.hpp"

namespace rnbd {
namespace {

/// Room for the message and its header behind the data of a request.
constexpr std::uint32_t kChunkOverhead = 4096;

/// "" or the mistake.
std::string contradiction_in_referrals(const Settings& settings) {
  for (const Referral& each : settings.directions.referrals) {
    const auto same = [&](const ExportSpecification& one) {
      return is_same_file_name(one.name, each.name);
    };
    if (std::ranges::any_of(settings.exports, same)) {
      return each.place + "referral '" + each.name +
             "' has the name of an export; remove one of them";
    }
  }
  return "";
}

/// "" or the mistake in the settings of proofs without TLS.
std::string contradiction_in_auth(const Settings& settings) {
  using rtrs::AuthMode;
  bool wanted = settings.auth == AuthMode::psk;
  for (const rtrs::ListenAddress& address : settings.listen) {
    wanted = wanted || address.auth == AuthMode::psk;
    if (address.auth == AuthMode::none && address.from.empty()) {
      return "a listener with auth=none lets in everybody who reaches it; write ,from=10.0.0.0/24 "
             "behind it, the network of those who cannot prove anything";
    }
  }
  if (wanted && settings.tls_keys.psk.empty()) {
    return "auth=psk needs keys; name a file of shared ones with tls-psk (rnbd-ctl keygen makes "
           "it)";
  }
  return "";
}

/// "" or the mistake in the settings of TLS.
std::string contradiction_in_tls(const Settings& settings) {
  using rtrs::AuthMode;
  using rtrs::TlsMode;
  bool wanted = settings.tls_mode() != TlsMode::off;
  for (const rtrs::ListenAddress& address : settings.listen) {
    const TlsMode mode = address.tls.value_or(settings.tls_mode());
    wanted = wanted || mode != TlsMode::off;
    // With keys, clients must prove their identity, and these clients do so as well.
    const bool proves = address.auth.value_or(settings.auth) == AuthMode::psk || address.auth;
    const bool by_default = !address.tls && !settings.tls && proves;
    if (address.transport == rtrs::TransportKind::rdma && mode == TlsMode::require && !by_default) {
      return "RDMA does not encrypt, and tls is require; write ,tls=off behind the rdma: listener "
             "to serve it in clear (with ,auth=psk clients prove who they are), or leave it out";
    }
  }
  if (wanted && settings.tls_keys.none()) {
    return "TLS needs keys; name a file of shared ones with tls-psk (rnbd-ctl keygen makes it), or "
           "a directory with tls-certificates (rnbd-ctl certgen)";
  }
  return "";
}

}  // namespace

std::string contradiction_in(const Settings& settings) {
  if (settings.exports.empty() && settings.search_path.empty() &&
      settings.directions.referrals.empty()) {
    return "there is nothing to export; add --export NAME=PATH, an [export.NAME] table in the "
           "configuration file, or --search-path DIRECTORY";
  }
  if (settings.max_io_size % 4096 != 0) {
    return "max-io-size " + std::to_string(settings.max_io_size) +
           " is not a multiple of 4096; use e.g. 256K";
  }
  const std::uint32_t chunk = settings.max_io_size + kChunkOverhead;
  if (!rtrs::wire::fits_immediate(settings.queue_depth, chunk)) {
    return "queue-depth " + std::to_string(settings.queue_depth) + " and max-io-size " +
           std::to_string(settings.max_io_size) +
           " do not fit together into the protocol; halve one of them";
  }
  const std::uint64_t all = std::uint64_t{settings.queue_depth} * chunk;
  const bool locks = std::ranges::any_of(settings.listen, [](const rtrs::ListenAddress& address) {
    return address.transport == rtrs::TransportKind::rdma;
  });
  const std::uint64_t needed =
      locks ? all : rtrs::floor_of_path(settings.queue_depth, settings.max_io_size);
  const std::uint64_t most = all * settings.max_sessions;
  const std::uint64_t limit = settings.memory_limit != 0
                                  ? settings.memory_limit
                                  : std::min(most, rtrs::memory_of_machine() / 2);
  if (needed > limit) {
    return "one path needs " + std::to_string(needed) + " bytes, but the memory limit is " +
           std::to_string(limit) + "; raise memory-limit, or lower queue-depth or max-io-size";
  }
  if (settings.memory_limit_per_user != 0 && needed > settings.memory_limit_per_user) {
    return "one path needs " + std::to_string(needed) + " bytes, but a user may have " +
           std::to_string(settings.memory_limit_per_user) +
           "; raise memory-limit-per-user, or lower queue-depth or max-io-size";
  }
  std::string wrong = contradiction_in_referrals(settings);
  if (wrong.empty()) wrong = contradiction_in_auth(settings);
  if (wrong.empty()) wrong = contradiction_in_tls(settings);
  return wrong.empty() ? contradiction_in_rights(settings) : wrong;
}

std::string doubt_about(const Settings& settings) {
  const std::uint64_t machine = rtrs::memory_of_machine();
  if (machine == 0 || settings.memory_limit <= machine) return "";
  return "memory-limit is " + std::to_string(settings.memory_limit) +
         " bytes, and this machine has " + std::to_string(machine) +
         ": when clients use more than that, the system ends this server; lower memory-limit, or "
         "queue-depth or max-io-size";
}

}  // namespace rnbd
