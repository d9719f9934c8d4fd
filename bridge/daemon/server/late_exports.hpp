// SPDX-License-Identifier: BSD-3-Clause
// Exports with missing storage, or storage in use, when the server starts. Mostly the I/O of a
// killed server still uses it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bridge/server/catalogue.hpp"

namespace rnbd {

/// "disk0 (1 GiB), iso (700.5 MiB, read-only), vm (waiting for its storage) and 12 more"
std::string describe_exports(const ExportCatalogue& catalogue);

/// Logs a line for each export with storage in use.
void tell_what_is_in_use(const ExportCatalogue& catalogue, const std::string& what_then);

/// Waits a little for storage in use before clients can connect. Mostly such I/O ends soon, so that
/// no client is refused.
void wait_for_storage(ExportCatalogue& catalogue);

/// Opens the remaining exports while the server runs, and logs the result.
class LateExports {
 public:
  /// `on_change` is called on a thread of its own.
  LateExports(ExportCatalogue& catalogue, std::function<void()> on_change);
  /// Waits for the present attempt.
  ~LateExports();
  LateExports(const LateExports&) = delete;
  LateExports& operator=(const LateExports&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rnbd
