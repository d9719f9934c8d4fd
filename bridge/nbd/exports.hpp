// SPDX-License-Identifier: BSD-3-Clause
// The exports that NBD clients may open, and their descriptions.
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/client/connections.hpp"
#include "bridge/nbd/framing.hpp"

namespace rnbd::nbd {

/// An open device that one NBD connection uses; closed with it, which may wait for the server.
class Lease {
 public:
  Lease() = default;
  Lease(Connections& connections, Disk& device) : connections_{&connections}, device_{&device} {}
  Lease(Lease&& other) noexcept
      : connections_{other.connections_}, device_{std::exchange(other.device_, nullptr)} {}
  Lease& operator=(Lease&& other) noexcept {
    std::swap(connections_, other.connections_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~Lease() {
    if (device_ != nullptr) connections_->close(device_);
  }

  explicit operator bool() const { return device_ != nullptr; }
  Disk& operator*() const { return *device_; }
  Disk* operator->() const { return device_; }

 private:
  Connections* connections_ = nullptr;
  Disk* device_ = nullptr;
};

/// The exports of the server that the configuration names.
///
/// Errors:  as Connections.
/// Threads: any.
class Exports {
 public:
  Exports(const ClientConfig& config, Connections& connections)
      : config_{config}, connections_{connections} {}

  tl::expected<std::vector<wire::ExportName>, Failure> list(const Interrupt& interrupt);
  /// "" is the default export. `absent` as for Connections.
  tl::expected<Lease, Failure> open(const std::string& name, const Interrupt& interrupt,
                                    Absent& absent);
  tl::expected<Lease, Failure> open(const std::string& name, const Interrupt& interrupt) {
    Absent absent = Absent::awaited;
    return open(name, interrupt, absent);
  }
  /// The transmission flags that do not depend on the choice of contexts.
  std::uint16_t flags(const Disk& device, Framing framing) const;
  std::string description(const Disk& device) const;

 private:
  const ClientConfig& config_;
  Connections& connections_;
};

}  // namespace rnbd::nbd
