// SPDX-License-Identifier: BSD-3-Clause
// Opens the storage of all exports in the settings.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "bridge/daemon/server/settings.hpp"
#include "bridge/server/catalogue.hpp"

namespace rnbd {

/// One more mistake about an export.
struct Mistake {
  unsigned line = 0;  ///< of the configuration file; 0 = the command line's
  std::string text;
};

struct OpenedExports {
  /// Descriptors that the server will open for itself; no export gets these. 0 once it has them.
  std::shared_ptr<std::atomic<int>> to_come;
  std::unique_ptr<ExportCatalogue> catalogue;
  std::vector<Mistake> mistakes;  ///< in the order of the settings; none: all is open, or waits
};

/// Descriptors of a server's state, which is open before its exports.
inline constexpr int kStateDescriptors = 6;

/// The number of reactors, and so of queues for each storage.
unsigned reactors_of(const Settings& settings);

/// May block. It fills in the opener of `options`, and the values from the settings. `missing`:
/// descriptors that a server would have before this.
OpenedExports open_exports(const Settings& settings, CatalogueOptions options, int missing = 0);

/// "disk0 (1 GiB), vm (waiting for its storage); what is below /srv/rnbd"
std::string describe(const Settings& settings, const ExportCatalogue& catalogue);

}  // namespace rnbd
