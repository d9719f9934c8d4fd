// SPDX-License-Identifier: BSD-3-Clause
// Reservations: the sessions that may write to a storage, and those that may come back to it and
// repeat their requests.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/protocol/messages.hpp"

namespace rnbd {

class BackendNotes;

/// How an export is opened.
struct Access {
  Access(wire::AccessMode how, const wire::Uuid& session = {}) : mode{how}, again{session} {}

  wire::AccessMode mode;
  wire::Uuid again;        ///< of a session that had it open
  bool unclaimed = false;  ///< excludes nobody, and is excluded by nobody
};

/// The sessions that take part in writing to a storage.
struct WriterRecord {
  struct Part {
    wire::Uuid session{};
    /// The same as long as the reservation lasts: a session that finds another one must not repeat
    /// the writes that were in flight before.
    std::uint32_t number = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };
  std::uint32_t origin = 0;  ///< of the numbers, 0: none was given yet
  std::uint32_t last = 0;    ///< that was given
  std::vector<Part> parts;

  friend bool operator==(const WriterRecord&, const WriterRecord&) = default;
};

/// Keeps records across lives of the server. Requests in flight at its end come again in its next
/// life, even if others have written meanwhile.
///
/// Threads: one at a time.
class WriterStore {
 public:
  virtual ~WriterStore() = default;
  /// Around a load and the save that depends on it: keeps other servers out. May block.
  virtual void lock() {}
  virtual void unlock() {}
  /// A storage is open for writing, and has room for notes; null: it has none.
  virtual void opened(const wire::Uuid& /*storage*/,
                      const std::shared_ptr<BackendNotes>& /*notes*/) {}
  /// No number was given yet: there is none. May block.
  ///
  /// Errors: the obstacle to knowing it.
  virtual tl::expected<WriterRecord, std::string> load(const wire::Uuid& storage) = 0;
  /// Durable when it returns. May block.
  ///
  /// Errors: the obstacle.
  virtual tl::expected<void, std::string> save(const wire::Uuid& storage,
                                               const WriterRecord& record) = 0;
};

/// How a session comes to write.
enum class OpenKind : std::uint8_t {
  anew,     ///< somebody opens it there
  again,    ///< it had it open, and looks at its number before it repeats anything
  unknown,  ///< Linux's clients do not say
};

/// The sessions that have a storage open for writing, and those with a reservation. A session
/// reserves when it opens the storage for writing. The reservation ends with any of these:
/// - another session opens it anew, or a Linux client without a reservation opens it, and the
///   session is not there itself;
/// - the session leaves while another one is there: it closes the storage or is cut off;
/// - the session closes the storage, and another one that was cut off may come back.
/// So two have reservations while a machine migrates, and both after a crash of the server.
///
/// Threads: its catalogue's lock.
class WriterReservations {
 public:
  /// Its record is no older than the store's.
  bool anybody_there() const { return !there_.empty(); }
  /// Some session with a reservation is away, and may come back.
  bool anybody_away() const {
    return std::ranges::any_of(record_.parts,
                               [&](const auto& part) { return !is_there(part.session); });
  }
  bool is_there(const wire::Uuid& session) const { return there_.contains(session); }
  bool takes_part(const wire::Uuid& session) const { return number_of(session) != 0; }
  /// The session's number, with the origin in the upper half; without a reservation the number
  /// given last. 0: none was.
  std::uint64_t serial_of(const wire::Uuid& session) const;

  const WriterRecord& record() const { return record_; }
  void set_record(WriterRecord record) { record_ = std::move(record); }
  /// The record with a new reservation for the session. A session that is there keeps its own; a
  /// new one ends those of sessions that are away. A session without a UUID gets none: it could not
  /// be recognized. `origin` is that of the first number, which is 1.
  WriterRecord with(const wire::Uuid& session, OpenKind open_kind, std::uint32_t origin) const;

  void enter(const wire::Uuid& session) { ++there_[session]; }
  /// True: the record has changed.
  bool leave(const wire::Uuid& session, bool closed);
  /// Takes part no more, whether it is there or not: it finds another number when it comes again.
  /// False: it took none.
  bool expel(const wire::Uuid& session);
  /// Cut off with the server: the record stays as it is.
  void vanish(const wire::Uuid& session);

 private:
  std::uint32_t number_of(const wire::Uuid& session) const;

  WriterRecord record_;
  std::map<wire::Uuid, unsigned> there_;  ///< how often each has it open
};

/// How many mappings may write to one storage, over all its names and all sessions, and whether
/// they have since somebody looked.
///
/// Threads: its catalogue's lock; look() and changed() any.
class WriterCount {
 public:
  WriterCount() = default;
  explicit WriterCount(std::uint32_t changes) : changes_{changes} {}

  /// rw excludes every other writer; two may write while a machine migrates, because the old and
  /// the new host have the device open for a moment. Returns 0 or EPERM.
  int take(wire::AccessMode mode);
  /// One of them takes part from here on.
  void take_part() { ++taking_part_; }
  /// A session that was let in, but has no reservation yet, may still end those of others.
  bool all_take_part() const { return taking_part_ == count_; }
  bool anybody() const { return count_ > 0; }
  void give_back(bool took_part) {
    --count_;
    if (took_part) --taking_part_;
  }

  /// A session is about to read, and to claim the storage later. The number changes when the
  /// content may have changed since that read.
  std::uint32_t look() {
    looked_at_ = true;
    return changes_;
  }
  std::uint32_t changes() const { return changes_; }
  /// A change has ended, which may have begun before the look. On the path of every write: the line
  /// stays shared, but for the first one after a look.
  void changed() {
    if (looked_at_.load(std::memory_order_acquire) && looked_at_.exchange(false)) ++changes_;
  }

 private:
  unsigned count_ = 0;
  unsigned taking_part_ = 0;
  std::atomic<bool> looked_at_{true};  ///< in the server's life before, perhaps
  std::atomic<std::uint32_t> changes_{0};
};

}  // namespace rnbd
