// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/server/options.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "rdma/client_log.hpp"
#include "rdma/control_group.hpp"
#include "rdma/core/server/path_loan.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {
namespace {

constexpr unsigned kMaxDefaultReactors = 8;
constexpr std::uint32_t kMaxHeaderSize = 4096;
constexpr unsigned kFewestHandshakes = 64, kMostHandshakes = 1024;

}  // namespace

/// Small data and messages of all requests, and data of some large ones.
std::uint64_t floor_of_path(std::uint32_t queue_depth, std::uint32_t max_io_size) {
  constexpr std::uint64_t kLarge = 8;
  constexpr std::uint64_t kOfChunk = std::uint64_t{PathLoan::kOwnPages} * PathLoan::kPage;
  const std::uint64_t all = std::uint64_t{queue_depth} * (max_io_size + kMaxHeaderSize);
  return std::min(all, queue_depth * kOfChunk + kLarge * max_io_size);
}

std::uint64_t memory_of_machine(const std::string& root) {
  const auto pages = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const auto page = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PAGESIZE)));
  std::uint64_t memory = pages * page;
  const std::filesystem::path top = std::filesystem::path{root} / "sys/fs/cgroup";
  std::filesystem::path group = control_group(root).lexically_normal();
  for (; group.native().size() >= top.native().size(); group = group.parent_path()) {
    const auto most = number_in(group / "memory.max");
    if (most) memory = memory == 0 ? *most : std::min(memory, *most);
  }
  return memory;
}

ServerOptions with_defaults(ServerOptions options) {
  if (options.reactors == 0) {
    options.reactors = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxDefaultReactors);
  }
  if (options.memory_limit == 0) {
    const std::uint64_t all = options.max_sessions * admission_limits(options).path_memory;
    options.memory_limit = std::min(all, memory_of_machine() / 2);
  }
  const bool proves = std::ranges::any_of(options.listen, [&](const ListenAddress& address) {
    return address.auth.value_or(options.auth) == AuthMode::psk;
  });
  if (proves || options.auth == AuthMode::psk) options.features |= wire::kFeatureAuthentication;
  if (options.max_handshakes == 0) {
    // Strangers must leave descriptors to the clients that are there.
    rlimit limit{};
    const bool limited = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    const rlim_t of_descriptors = limited ? limit.rlim_cur / 16 : kMostHandshakes;
    const rlim_t of_connections = options.max_connections / 4;
    options.max_handshakes =
        static_cast<unsigned>(std::clamp(std::min(of_connections, of_descriptors),
                                         rlim_t{kFewestHandshakes}, rlim_t{kMostHandshakes}));
  }
  if (!options.client_log) options.client_log = std::make_shared<ClientLog>(options.log);
  return options;
}

ServerSessionOptions session_options(const ServerOptions& options) {
  ServerSessionOptions session;
  session.queue_depth = static_cast<std::uint16_t>(options.queue_depth);
  session.max_io_size = options.max_io_size;
  session.max_header_size = kMaxHeaderSize;
  session.features = options.features;
  return session;
}

AcceptorOptions acceptor_options(const ServerOptions& options) {
  AcceptorOptions acceptor;
  acceptor.max_handshakes = options.max_handshakes;
  acceptor.handshake_timeout = options.handshake_timeout;
  acceptor.header_digest = options.header_digest;
  acceptor.data_digest = options.data_digest;
  acceptor.need_keys = options.always_invalidate;
  acceptor.log = options.log;
  acceptor.words = options.words;
  return acceptor;
}

AdmissionLimits admission_limits(const ServerOptions& options, MemoryAccount* account) {
  return {.max_sessions = options.max_sessions,
          .max_sessions_per_user = options.max_sessions_per_user,
          .max_paths_per_session = options.max_paths_per_session,
          .max_connections_per_path = options.max_connections_per_path,
          .max_half_open = options.max_handshakes,
          .path_memory = session_options(options).chunk_memory(),
          .path_floor = floor_of_path(options.queue_depth, options.max_io_size),
          .memory_limit = options.memory_limit,
          .memory_limit_per_user = options.memory_limit_per_user,
          .features = options.features,
          .words = options.words,
          .account = account};
}

tl::expected<void, Failure> check(const ServerOptions& options) {
  const auto invalid = [](const std::string& text) {
    return tl::unexpected(Failure{EINVAL, text});
  };
  if (options.queue_depth < 1 || options.queue_depth > 65535) {
    return invalid("queue depth " + std::to_string(options.queue_depth) +
                   " is out of range: use 1 to 65535");
  }
  if (options.max_io_size < 4096 || options.max_io_size % 4096 != 0) {
    return invalid("max io size " + std::to_string(options.max_io_size) +
                   " must be a multiple of 4096");
  }
  if (!wire::fits_immediate(options.queue_depth, options.max_io_size + kMaxHeaderSize)) {
    return invalid("queue depth " + std::to_string(options.queue_depth) + " times max io size " +
                   std::to_string(options.max_io_size) +
                   " is more than the protocol can address (256 MiB): lower one of them");
  }
  const bool locks = std::ranges::any_of(options.listen, [](const ListenAddress& address) {
    return address.transport == TransportKind::rdma;
  });
  const AdmissionLimits limits = admission_limits(options);
  const std::uint64_t needed = locks ? limits.path_memory : limits.path_floor;
  if (needed > options.memory_limit) {
    return invalid("one path needs " + std::to_string(needed) +
                   " bytes of chunks, more than the memory limit of " +
                   std::to_string(options.memory_limit) +
                   ": raise the limit, or lower queue depth or max io size");
  }
  if (options.max_paths_per_session == 0) {
    return invalid("max paths per session is 0: allow at least one");
  }
  if (options.heartbeat_interval <= Duration::zero()) {
    return invalid("the heartbeat interval must be longer than zero");
  }
  if (options.handshake_timeout <= Duration::zero()) {
    return invalid("the handshake timeout must be longer than zero");
  }
  for (const ListenAddress& address : options.listen) {
    if (address.transport == TransportKind::rdma &&
        address.tls.value_or(options.tls) == TlsMode::require) {
      return invalid("RDMA does not encrypt, so a server that requires TLS cannot listen on rdma:" +
                     address.host + ": listen on tcp: instead");
    }
  }
  if (options.listen.empty() && options.listen_fds.empty()) {
    return invalid("no address to listen on");
  }
  return {};
}

/// FNV-1a.
std::uint64_t volatile_epoch_of(std::string_view boot_id) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : boot_id) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  return hash;
}

std::uint64_t volatile_epoch_of_this_machine(std::uint64_t losses) {
  std::ifstream file{"/proc/sys/kernel/random/boot_id"};
  std::string id;
  if (file && std::getline(file, id)) {
    return volatile_epoch_of(losses == 0 ? id : id + '+' + std::to_string(losses));
  }
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

}  // namespace rtrs
