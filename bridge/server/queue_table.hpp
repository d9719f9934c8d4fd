// SPDX-License-Identifier: BSD-3-Clause
// One reactor's queues to the storage of its sessions.
#pragma once

#include <memory>
#include <vector>

#include "bridge/backend/backend.hpp"
#include "bridge/server/catalogue.hpp"
#include "bridge/server/services.hpp"

namespace rnbd {

/// Opens a BackendQueue per storage when the first session of the reactor needs it. Queues of
/// permanent storage stay. Those of other files go with their last user. So do queues that broke
/// (an NBD server went away), or of a replaced storage. The next OPEN gets a new one.
///
/// Threads: its reactor. The destructor runs when the reactor has stopped and no request is left.
class QueueTable {
 public:
  QueueTable(rtrs::Reactor* reactor, ExportCatalogue& catalogue, const Services& services)
      : reactor_{reactor}, catalogue_{catalogue}, services_{services} {}
  ~QueueTable();
  QueueTable(const QueueTable&) = delete;
  QueueTable& operator=(const QueueTable&) = delete;

  /// Call release() once for each acquire(). Null when the backend could not open one. Not from
  /// inside a completion of a backend.
  BackendQueue* acquire(const std::shared_ptr<Storage>& storage);
  /// May be called inside a completion of this queue, which is then destroyed later.
  void release(const BackendQueue& queue);

  /// Closes unused queues of storage that was replaced.
  void retire_what_is_over();

  rtrs::Reactor* reactor() const { return reactor_; }

 private:
  struct Entry {
    std::shared_ptr<Storage> storage;
    std::unique_ptr<BackendQueue> queue;  // declared after the storage, so destroyed before it
    unsigned users = 0;
  };

  using Entries = std::vector<Entry>;

  static bool is_over(const Entry& entry);
  Entries::iterator retire(Entries::iterator entry);
  void bury();

  rtrs::Reactor* reactor_;
  ExportCatalogue& catalogue_;
  const Services& services_;
  Entries entries_;
  Entries retired_;
};

}  // namespace rnbd
