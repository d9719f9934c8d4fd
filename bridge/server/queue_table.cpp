#include "bridge/server/queue_table.hpp"

#include <algorithm>
#include <utility>

namespace rnbd {

QueueTable::~QueueTable() = default;

BackendQueue* QueueTable::acquire(const std::shared_ptr<Storage>& storage) {
  if (!surroundings_.later) bury();
  for (Entry& entry : entries_) {
    if (entry.storage != storage) continue;
    ++entry.users;
    return entry.queue.get();
  }
  std::unique_ptr<BackendQueue> queue = storage->backend().open_queue(reactor_);
  if (queue == nullptr) return nullptr;
  entries_.push_back({storage, std::move(queue), 1});
  return entries_.back().queue.get();
}

void QueueTable::release(const Storage& storage) {
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.storage.get() == &storage; });
  if (entry == entries_.end() || --entry->users > 0 || storage.permanent()) return;
  retired_.push_back(std::move(*entry));
  entries_.erase(entry);
  if (surroundings_.later) surroundings_.later(reactor_, [this] { bury(); });
}

void QueueTable::bury() {
  for (Entry& entry : std::exchange(retired_, {})) {
    entry.queue.reset();
    // Closing a file may block as long as opening it.
    surroundings_.run_blocking(
        reactor_,
        [&catalogue = catalogue_, storage = std::move(entry.storage)]() mutable {
          catalogue.close(std::move(storage));
        },
        {});
  }
}

}  // namespace rnbd
