// SPDX-License-Identifier: BSD-3-Clause
// The command line of rnbd-bridge.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/daemon/cli.hpp"
#include "bridge/daemon/metrics_address.hpp"
#include "bridge/nbd/listener.hpp"
#include "rdma/log.hpp"
#include "rdma/tls.hpp"

namespace rnbd {

/// The export as a disk of the kernel.
struct KernelOptions {
  std::optional<unsigned> index;  ///< of /dev/nbdN; none: the first that is free
  std::string name;               ///< of the mapping
  std::chrono::seconds dead_timeout{3600};
  std::chrono::milliseconds retry{900};
};

struct BridgeOptions {
  ClientConfig client;
  std::vector<nbd::NbdAddress> listen;  ///< empty: inherited sockets, else 127.0.0.1
  /// The address of a face beside NBD, see BridgeAnnex; "": none. Nobody else is served then.
  std::string other_face;
  std::optional<rtrs::TlsMode> tls;  ///< of NBD clients; none: require if there are keys
  rtrs::TlsKeys tls_keys;
  rtrs::TlsMode tls_mode() const {
    return tls.value_or(tls_keys.none() ? rtrs::TlsMode::off : rtrs::TlsMode::require);
  }
  unsigned max_connections = 256;
  rtrs::LogLevel log_level = rtrs::LogLevel::info;
  std::string pid_file;
  std::optional<MetricsAddress> metrics;  ///< none: they are not served
  bool no_uring = false;                  ///< each system call is to send or to wait
  int ready_fd = -1;                      ///< -1 = none
  std::optional<KernelOptions> kernel;    ///< none: for NBD clients, or for `disks`
  std::string disks;  ///< key of the bridge whose disks of the kernel it serves; "": none
  /// The folders of their files; of two files with a name the last counts.
  std::vector<std::string> disk_files{"/run/rnbd/map.d", "/etc/rnbd/map.d"};
};

tl::expected<BridgeOptions, EarlyExit> parse_bridge_options(int argc, const char* const* argv);

}  // namespace rnbd
