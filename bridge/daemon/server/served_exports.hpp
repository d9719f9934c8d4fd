// SPDX-License-Identifier: BSD-3-Clause
// The storage that each export was served from, in the state directory. After a restart of the
// server its path may lead to other storage, and nothing else tells the operator.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "bridge/protocol/messages.hpp"
#include "rdma/log.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {

/// A small file for each export that clients may write to.
///
/// Threads: any.
class ServedExports {
 public:
  /// Creates the directory if it does not exist.
  ///
  /// Errors: the trouble with it.
  static tl::expected<std::shared_ptr<ServedExports>, std::string> open(
      const std::string& directory, rtrs::Log log);

  /// Records the storage that a path leads to. If an earlier process has served other storage from
  /// this path under this name, it says so. May block.
  void serve(const std::string& name, const std::string& path, const wire::Uuid& storage);

 private:
  ServedExports(rtrs::OwnedFd directory, std::string path, rtrs::Log log)
      : directory_{std::move(directory)}, path_{std::move(path)}, log_{std::move(log)} {}

  const rtrs::OwnedFd directory_;
  const std::string path_;
  const rtrs::Log log_;
  std::mutex mutex_;             ///< around the reading and writing of files
  std::set<std::string> known_;  ///< the names that this process has served
};

}  // namespace rnbd
