// SPDX-License-Identifier: BSD-3-Clause
// The addresses on which NBD clients connect.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "rdma/failure.hpp"

namespace rnbd::nbd {

using rtrs::Failure;

inline constexpr std::uint16_t kDefaultPort = 10809;

/// `unix:PATH` or `tcp:HOST[:PORT]`.
struct NbdAddress {
  std::string path{};  ///< of a Unix socket; "" = TCP
  std::string host{};  ///< "" = every address
  std::uint16_t port = kDefaultPort;
  friend bool operator==(const NbdAddress&, const NbdAddress&) = default;
};

/// Errors: a sentence that shows the right form.
tl::expected<NbdAddress, std::string> parse_nbd_address(std::string_view text);

/// The text from which the address can be read again.
std::string text_of(const NbdAddress& address);

/// A socket that listens. Its end removes the file of a Unix socket that it has made.
class Listener {
 public:
  /// Takes over a socket that listens already (socket activation).
  explicit Listener(int fd) : fd_{fd} {}
  /// Takes over one of another process, which listens on this address; "": socket activation.
  static Listener adopt(int fd, const std::string& address) {
    return Listener{fd, address.starts_with("unix:") ? address.substr(5) : ""};
  }
  Listener(Listener&& other) noexcept
      : fd_{std::exchange(other.fd_, -1)}, path_{std::exchange(other.path_, {})} {}
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int fd() const { return fd_; }
  /// As a client would write it: unix:PATH or tcp:ADDRESS:PORT.
  std::string address() const;
  /// True when programs of other machines may reach it.
  bool reachable_from_outside() const;
  const std::string& path() const { return path_; }

  /// Listens on every address that `address` stands for. A Unix socket without a listener is
  /// replaced.
  ///
  /// Errors: EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EHOSTUNREACH (no name server answers), ENXIO
  ///         (no such name) and others, each with a sentence that names the address and the remedy.
  static tl::expected<std::vector<Listener>, Failure> open(const NbdAddress& address);

 private:
  Listener(int fd, std::string path) : fd_{fd}, path_{std::move(path)} {}
  static tl::expected<Listener, Failure> open_unix(const std::string& path);

  int fd_;
  std::string path_;  ///< of the file to remove
};

}  // namespace rnbd::nbd
