// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/queue_table.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "bridge/server/attempt.hpp"

namespace rnbd {

QueueTable::~QueueTable() = default;

bool QueueTable::is_over(const Entry& entry) {
  return entry.queue->broken() || entry.storage->replaced();
}

BackendQueue* QueueTable::acquire(const std::shared_ptr<Storage>& storage) {
  retire_what_is_over();
  if (!services_.has_event_loop()) bury();
  for (Entry& entry : entries_) {
    if (entry.storage != storage || entry.queue->broken()) continue;
    ++entry.users;
    return entry.queue.get();
  }
  BackendQueue* made = nullptr;
  attempt([&] {
    std::unique_ptr<BackendQueue> queue = storage->backend().open_queue(reactor_);
    if (queue == nullptr) return;
    entries_.push_back({storage, std::move(queue), 1});
    made = entries_.back().queue.get();
  });
  return made;
}

void QueueTable::release(const BackendQueue& queue) {
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.queue.get() == &queue; });
  if (entry == entries_.end() || --entry->users > 0) return;
  if (!entry->storage->permanent() || is_over(*entry)) retire(entry);
}

/// Closes unused queues that are broken, or whose storage was replaced. Used ones are closed with
/// their last user.
void QueueTable::retire_what_is_over() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    entry = entry->users == 0 && is_over(*entry) ? retire(entry) : std::next(entry);
  }
}

QueueTable::Entries::iterator QueueTable::retire(Entries::iterator entry) {
  retired_.push_back(std::move(*entry));
  if (services_.has_event_loop()) services_.later(reactor_, [this] { bury(); });
  return entries_.erase(entry);
}

void QueueTable::bury() {
  for (Entry& entry : std::exchange(retired_, {})) {
    entry.queue.reset();
    // Closing a file may block as long as opening it.
    services_.offload(reactor_,
                      [&catalogue = catalogue_, storage = std::move(entry.storage)]() mutable {
                        catalogue.storages().close(std::move(storage));
                      },
                      {});
  }
}

}  // namespace rnbd
