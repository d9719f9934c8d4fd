// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/path_list.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "rdma/memory_path.hpp"

namespace rtrs {

tl::expected<std::unique_ptr<MemoryPath>, Failure> Client::open_memory_path(const PathAddress&,
                                                                            const Interrupt&) {
  return tl::unexpected(Failure{ENOTSUP, "this session has no memory paths"});
}

tl::expected<void, Failure> Client::no_such(const PathAddress& path) {
  return PathList{{}}.contains(path);
}

std::string to_string(const PathAddress& path) {
  const auto bracketed = [](const std::string& host) {
    return host.find(':') == std::string::npos ? host : '[' + host + ']';
  };
  return std::string{path.transport == TransportKind::tcp ? "tcp:" : "rdma:"} +
         (path.source.empty() ? "" : bracketed(path.source) + '@') + bracketed(path.host) + ':' +
         std::to_string(path.port);
}

tl::expected<void, Failure> can_carry(const PathAddress& path, TlsMode tls) {
  if (tls == TlsMode::off || path.transport == TransportKind::tcp) return {};
  return tl::unexpected(
      Failure{EPROTONOSUPPORT, "RDMA does not encrypt, so " + to_string(path) +
                                   " cannot be a path of a session with TLS: name a tcp: path, or "
                                   "give TLS up for all of them"});
}

tl::expected<void, Failure> PathList::add(const PathAddress& path) {
  if (contains(path)) {
    return tl::unexpected(Failure{EEXIST, "the path " + to_string(path) + " is there already"});
  }
  if (std::abs(path.preference) > kMaxPreference) {
    return tl::unexpected(Failure{EINVAL, "the preference of a path is a number from -9 to 9"});
  }
  if (paths_.size() >= kMaxPaths) {
    return tl::unexpected(Failure{ENOSPC, "a session has at most " + std::to_string(kMaxPaths) +
                                              " paths; remove another one first"});
  }
  paths_.push_back(path);
  return {};
}

tl::expected<void, Failure> PathList::remove(const PathAddress& path) {
  if (auto found = contains(path); !found) return found;
  if (paths_.size() == 1) {
    return tl::unexpected(Failure{
        EBUSY, to_string(path) + " is the last path, and a session needs one; add another first"});
  }
  std::erase(paths_, path);
  return {};
}

tl::expected<void, Failure> PathList::contains(const PathAddress& path) const {
  if (std::ranges::find(paths_, path) != paths_.end()) return {};
  std::string names;
  for (const PathAddress& one : paths_) names += (names.empty() ? "" : ", ") + to_string(one);
  return tl::unexpected(
      Failure{ENOENT, "there is no path " + to_string(path) + "; there are " + names});
}

}  // namespace rtrs
