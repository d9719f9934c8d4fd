// SPDX-License-Identifier: BSD-3-Clause
// Opens the storage of all exports in the settings.
#pragma once

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
  std::unique_ptr<ExportCatalogue> catalogue;
  std::vector<Mistake> mistakes;  ///< in the order of the settings; none: all is open, or waits
};

/// The number of reactors, and so of queues for each storage.
unsigned reactors_of(const Settings& settings);

/// May block. It fills in the opener of `options`, and the values from the settings.
OpenedExports open_exports(const Settings& settings, CatalogueOptions options);

/// "disk0 (1 GiB), vm (waiting for its storage); what is below /srv/rnbd"
std::string describe(const Settings& settings, const ExportCatalogue& catalogue);

}  // namespace rnbd
