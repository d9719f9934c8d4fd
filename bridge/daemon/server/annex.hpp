// SPDX-License-Identifier: BSD-3-Clause
// Interfaces for what rnbd-server does beyond plain block I/O. Each annex has a folder of its own,
// and a line in annexes.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/control/commands.hpp"
#include "bridge/daemon/server/settings.hpp"
#include "bridge/server/annex.hpp"
#include "bridge/server/catalogue.hpp"

namespace rnbd {

/// The facts that an annex may need when the server starts.
struct AnnexStart {
  const Settings& settings;
  std::string directory;             ///< of the server's state; "": nothing outlives the process
  std::uint64_t volatile_epoch = 0;  ///< differs if answered writes may have been lost; 0: unknown
  rtrs::Log log;
};

/// The contribution of an annex. A null function: nothing of that kind.
struct DaemonAnnex {
  std::span<const SettingRule> settings = {};  ///< a change needs a restart
  std::uint64_t features = 0;                  ///< of the handshake
  /// Errors: the obstacle in the state directory.
  tl::expected<std::shared_ptr<ServerAnnex>, std::string> (*open)(const AnnexStart& start) =
      nullptr;
  std::vector<ControlCommand> (*commands)(const ExportCatalogue& catalogue) = nullptr;
  /// The specification of storage of its own, which open_storage() opens.
  std::string_view storage = {};
  tl::expected<std::unique_ptr<Backend>, Failure> (*open_storage)() = nullptr;
};

std::span<const DaemonAnnex* const> daemon_annexes();

}  // namespace rnbd
