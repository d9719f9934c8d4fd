// SPDX-License-Identifier: BSD-3-Clause
// The exports without storage at the server's start, or with storage that somebody else has: mostly
// the I/O of a server that was killed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bridge/server/catalogue.hpp"

namespace rnbd {

/// "disk0 (1 GiB), iso (700.5 MiB, read-only), vm (waiting for its storage) and 12 more"
std::string describe_exports(const ExportCatalogue& catalogue);

/// A line in the log for each export with storage that somebody else has.
void tell_what_is_in_use(const ExportCatalogue& catalogue, const std::string& what_then);

/// Waits a little for storage in use before clients are let in: as a rule such I/O ends soon, and
/// nobody is refused.
void wait_for_storage(ExportCatalogue& catalogue);

/// Opens the exports that still wait while the server serves, and tells the log.
class LateExports {
 public:
  /// `on_change` is called on a thread of its own.
  LateExports(ExportCatalogue& catalogue, std::function<void()> on_change);
  /// Waits for the attempt that is under way.
  ~LateExports();
  LateExports(const LateExports&) = delete;
  LateExports& operator=(const LateExports&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rnbd
