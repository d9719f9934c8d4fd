// What outlives a server, in its state directory: the turns of writers, one small file for each
// storage, and whether flushes have failed.
#pragma once

#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "bridge/server/owned_fd.hpp"
#include "bridge/server/writer_turns.hpp"
#include "rdma/client.hpp"

namespace rnbd {

/// Files are replaced as a whole, and are durable. Servers with different storage may share the
/// directory.
class TurnFiles final : public TurnStore {
 public:
  /// Makes the directory if it is not there.
  ///
  /// Errors: what is wrong with it.
  static tl::expected<std::unique_ptr<TurnFiles>, std::string> open(const std::string& directory);

  std::optional<WriterTurn> load(const wire::Uuid& storage) override;
  int save(const wire::Uuid& storage, const WriterTurn& turn) override;

 private:
  explicit TurnFiles(OwnedFd directory) : directory_{std::move(directory)} {}

  OwnedFd directory_;
};

/// Counts the times that answered writes may have been lost without a restart of the machine: the
/// size of a file, to which each adds a byte.
///
/// Threads: any.
class LossCount {
 public:
  /// In a directory that is there. Without a file nothing is counted.
  explicit LossCount(const std::string& directory);

  std::uint64_t count() const;
  /// Durable when it returns, as far as the file can be written. May block.
  void add() const;

 private:
  OwnedFd file_;
};

/// Where a server keeps what has to outlive it, if nobody says: $STATE_DIRECTORY, which systemd
/// sets, or /var/lib/rnbd.
std::string default_state_directory();

}  // namespace rnbd
